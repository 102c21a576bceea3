//! When a recurring job is due: a cron expression in a time zone. Pure: instants come in and go out
//! as microseconds since 1970.
//!
//! The expression is parsed by `croner`, the zone is looked up in the time zone data of the host.
//! Where a zone's clock goes forward, a run in the gap comes right after it; where it goes back, a
//! run at a fixed time of the day comes once.

use std::fmt;
use std::str::FromStr;

use croner::Cron;
use croner::parser::{CronParser, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::contract::{Error, ErrorKind};
use crate::limits;

/// The zone of a schedule that names none.
const UTC: &str = "UTC";

/// When a [recurring job](crate::JobQueue::add_recurring) runs: a cron expression, in UTC unless
/// [`in_zone`](Self::in_zone) says otherwise.
///
/// Five fields: minute, hour, day of the month, month, day of the week (0 or 7 is Sunday); or six,
/// with seconds before them. `*`, lists, ranges, steps, names (`MON`, `JAN`), `L` (last), `W`
/// (nearest working day), `#` (`MON#1`, the first Monday) and nicknames such as `@daily` are
/// allowed.
///
/// # Examples
/// ```
/// use tenure::CronSchedule;
///
/// let working_days: CronSchedule = "30 3 * * 1-5".parse()?;
/// let here = working_days.clone().in_zone("Europe/Berlin")?;
/// let friday_noon = 1_763_121_600_000_000; // 2025-11-14 12:00 UTC
/// let hours = |next: Option<u64>| (next.unwrap() - friday_noon) / 3_600_000_000;
/// assert_eq!(hours(working_days.next_after(friday_noon)), 63); // Monday, 3:30
/// assert_eq!(hours(here.next_after(friday_noon)), 62);
/// assert!("30 25 * * *".parse::<CronSchedule>().is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct CronSchedule {
    expression: String,
    zone: String,
    cron: Cron,
    time_zone: TimeZone,
}

impl CronSchedule {
    /// The same expression in a time zone of the IANA database, such as `Europe/Berlin`.
    ///
    /// # Errors
    /// `InvalidOption` if the host's time zone data has no such zone.
    pub fn in_zone(mut self, zone: &str) -> Result<Self, Error> {
        self.time_zone = if zone == UTC {
            TimeZone::UTC
        } else {
            TimeZone::get(zone).map_err(|_| {
                let what = format!("{zone:?} is not a time zone that this host knows");
                let help = "use a name of the IANA database, such as Europe/Berlin; the data is in \
                            /usr/share/zoneinfo (Debian: package tzdata)";
                Error::invalid(ErrorKind::InvalidOption, what).with_help(help)
            })?
        };
        zone.clone_into(&mut self.zone);
        Ok(self)
    }

    /// The expression as it was given.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The name of the time zone.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Returns the first instant after this one at which the job is due, both in microseconds since
    /// 1970. `None` if there is none within the range of dates.
    #[must_use]
    pub fn next_after(&self, micros: u64) -> Option<u64> {
        let now = Timestamp::from_microsecond(i64::try_from(micros).ok()?).ok()?;
        let next = self.cron.find_next_occurrence(&now.to_zoned(self.time_zone.clone()), false);
        let next = next.ok()?.timestamp().as_microsecond();
        u64::try_from(next).ok().filter(|next| *next > micros)
    }
}

impl FromStr for CronSchedule {
    type Err = Error;

    fn from_str(expression: &str) -> Result<Self, Error> {
        let wrong = |why: &dyn fmt::Display| {
            let what = format!("{expression:?} is not a cron expression: {why}");
            Error::invalid(ErrorKind::InvalidOption, what).with_help(
                "five fields: minute, hour, day of the month, month, day of the week; `30 3 * * *` \
                 is each day at 3:30",
            )
        };
        if expression.len() > limits::CRON_BYTES {
            let most = limits::CRON_BYTES;
            let what = format!("a cron expression has at most {most} bytes");
            return Err(Error::invalid(ErrorKind::InvalidOption, what));
        }
        let parser = CronParser::builder().year(Year::Disallowed).build();
        let cron = parser.parse(expression).map_err(|error| wrong(&error))?;
        let (expression_text, zone) = (expression.trim().to_owned(), UTC.to_owned());
        let schedule = Self { expression: expression_text, zone, cron, time_zone: TimeZone::UTC };
        // The thirtieth of February: a job that never runs is a mistake.
        if schedule.next_after(0).is_none() {
            return Err(wrong(&"there is no such date"));
        }
        Ok(schedule)
    }
}

impl fmt::Debug for CronSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CronSchedule")
            .field("expression", &self.expression)
            .field("zone", &self.zone)
            .finish_non_exhaustive()
    }
}

impl PartialEq for CronSchedule {
    fn eq(&self, other: &Self) -> bool {
        (&self.expression, &self.zone) == (&other.expression, &other.zone)
    }
}

impl Eq for CronSchedule {}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(expression: &str, zone: &str, after: &str) -> String {
        let schedule: CronSchedule = expression.parse().unwrap();
        let after: Timestamp = after.parse().unwrap();
        let after = u64::try_from(after.as_microsecond()).unwrap();
        let next = schedule.in_zone(zone).unwrap().next_after(after).unwrap();
        Timestamp::from_microsecond(i64::try_from(next).unwrap()).unwrap().to_string()
    }

    #[test]
    fn the_next_run_is_after_the_instant_and_in_utc_unless_said_otherwise() {
        let cases = [
            ("*/15 * * * *", "2026-03-01T10:15:00Z", "2026-03-01T10:30:00Z"),
            ("*/15 * * * *", "2026-03-01T10:14:59.999999Z", "2026-03-01T10:15:00Z"),
            ("0 9 * * MON-FRI", "2026-03-06T12:00:00Z", "2026-03-09T09:00:00Z"),
            ("0 0 L * *", "2026-02-01T00:00:00Z", "2026-02-28T00:00:00Z"),
            ("0 0 29 2 *", "2026-02-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("*/10 * * * * *", "2026-03-01T10:15:03Z", "2026-03-01T10:15:10Z"),
            ("@hourly", "2026-03-01T10:15:03Z", "2026-03-01T11:00:00Z"),
        ];
        for (expression, after, wanted) in cases {
            assert_eq!(next(expression, "UTC", after), wanted, "{expression} after {after}");
        }
    }

    #[test]
    fn a_zone_has_its_own_hours_and_its_clock_may_jump() {
        let berlin = |expression, after| next(expression, "Europe/Berlin", after);
        assert_eq!(berlin("30 3 * * *", "2026-01-10T12:00:00Z"), "2026-01-11T02:30:00Z");
        assert_eq!(berlin("30 3 * * *", "2026-07-10T12:00:00Z"), "2026-07-11T01:30:00Z");
        // On 2026-03-29 the clock goes from 2:00 to 3:00, on 2026-10-25 from 3:00 back to 2:00.
        assert_eq!(berlin("30 2 * * *", "2026-03-28T12:00:00Z"), "2026-03-29T01:00:00Z");
        let first = berlin("30 2 * * *", "2026-10-24T12:00:00Z");
        assert_eq!(first, "2026-10-25T00:30:00Z");
        assert_eq!(berlin("30 2 * * *", "2026-10-25T00:30:00Z"), "2026-10-26T01:30:00Z");
    }

    #[test]
    fn what_is_no_schedule_is_refused_with_the_reason() {
        let wrong = ["", "* * * *", "61 * * * *", "* 24 * * *", "a b c d e", "0 0 30 2 *"];
        for expression in wrong {
            let error = expression.parse::<CronSchedule>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{expression:?}");
            assert!(error.to_string().contains("is not a cron expression: "), "{error}");
        }
        let long = " ".repeat(limits::CRON_BYTES + 1).parse::<CronSchedule>().unwrap_err();
        assert!(long.to_string().contains("at most"), "{long}");
        let schedule: CronSchedule = "@daily".parse().unwrap();
        let error = schedule.in_zone("Europe/Berlln").unwrap_err();
        assert!(error.to_string().contains("\"Europe/Berlln\" is not a time zone"), "{error}");
    }
}
