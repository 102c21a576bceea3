//! Medians and blocks of repetitions. Knows numbers and a stopwatch, not what is measured.

use std::time::{Duration, Instant};

/// The middle of some samples; of an even number, the mean of the two in the middle.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// The smallest sample that so many percent of the samples do not exceed.
pub(crate) fn percentile(samples: &[f64], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Nanoseconds for each of `times` repetitions that began at `start`.
pub(crate) fn nanos_each(start: Instant, times: u32) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / f64::from(times)
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        for (percent, expected) in [(99, 198.0), (50, 100.0), (100, 200.0), (0, 1.0)] {
            assert!((percentile(&samples, percent) - expected).abs() < f64::EPSILON, "{percent}");
        }
        assert!((percentile(&[5.0], 99) - 5.0).abs() < f64::EPSILON);
    }

    #[test]
    fn one_wild_sample_does_not_move_the_median() {
        assert!((median(&[3.0, 1.0, 1e9]) - 3.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 1e9]) - 3.0).abs() < f64::EPSILON);
        assert!(median(&[]).is_nan());
    }
}
