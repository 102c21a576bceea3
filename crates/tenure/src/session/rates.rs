//! The rates of a session: those of its engine, with the session's rules. Every call has the
//! timeout of a call, and none is made once the session is closed.
//!
//! A request that may have arrived is not repeated: it may have taken permits, and a repeat would
//! take them twice. Its error has an unknown effect; what it took counts, so that no limit is
//! exceeded. A request that was certainly not carried out is repeated after a pause.

use super::Core;
use super::park::sleep_until;
use crate::contract::{
    Effect, Error, ErrorKind, Name, Pending, Rates, Settle, Settled, Take, TakeReply, TakeVerdict,
    Verb, short,
};
use crate::limits;
use crate::time::back_off;

impl Core {
    /// Takes permits, or says when they fit.
    pub(crate) async fn take_rate(&self, take: &Take) -> Result<TakeReply, Error> {
        take.check()?;
        let verdict = match self.take_at_once(take)? {
            Some(verdict) => verdict,
            None => self.rate_call(&take.name, |rates| rates.take(take)).await?,
        };
        let windows = match verdict {
            TakeVerdict::Told(reply) => return Ok(reply),
            TakeVerdict::OtherWindows(windows) => windows,
        };
        let windows: Vec<String> = windows.into_iter().map(short).collect();
        let stands = if windows.is_empty() {
            "an even flow (pace)".to_owned()
        } else {
            format!("limits per {}", windows.join(", "))
        };
        let what = format!("the rate is in use with {stands}");
        let help = "state the windows that are in use, wait until they have passed, or reset the \
                    rate: the number of permits may change at any time, the windows may not";
        Err(Error::new(ErrorKind::Shape, what).during(Verb::Rate).on(&take.name).with_help(help))
    }

    /// Corrects how much was taken.
    pub(crate) async fn settle_rate(&self, settle: &Settle) -> Result<Settled, Error> {
        settle.check()?;
        self.rate_call(&settle.name, |rates| rates.settle(settle)).await
    }

    /// Forgets everything that was taken.
    pub(crate) async fn reset_rate(&self, name: &Name) -> Result<(), Error> {
        self.rate_call(name, |rates| rates.reset(name)).await
    }

    /// Takes permits, if the engine answers without waiting for anything.
    fn take_at_once(&self, take: &Take) -> Result<Option<TakeVerdict>, Error> {
        let Some(rates) = self.engine.rates() else { return Ok(None) };
        self.check_open(Verb::Rate)?;
        Ok(rates.take_at_once(take))
    }

    async fn rate_call<'a, T: Send + 'a>(
        &'a self,
        name: &Name,
        call: impl Fn(&'a dyn Rates) -> Pending<'a, T>,
    ) -> Result<T, Error> {
        let Some(rates) = self.engine.rates() else {
            return Err(self.engine.promises().lacks_rates().during(Verb::Rate).on(name));
        };
        let began = self.clock.now();
        for tries in 1.. {
            let error = match self.limited(Verb::Rate, || call(rates)).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let now = self.clock.now();
            let may_repeat = error.kind() == ErrorKind::Unavailable
                && error.effect() == Effect::None
                && tries < limits::CLAIM_TRIES;
            if !may_repeat {
                return Err(error.tried(tries, now.since(began)).on(name));
            }
            sleep_until(self, now + back_off(tries, self.jitter())).await;
        }
        unreachable!("the loop returns")
    }
}
