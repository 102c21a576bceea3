//! The names behind which somebody waits, as far as was seen here. Knows names, not claims: only a
//! hint, which decides how a release is sent and never what it does.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::contract::Name;

/// More are forgotten all at once.
const MOST: usize = 1_024;

/// Names behind which somebody was seen to wait.
#[derive(Default)]
pub(super) struct Crowds {
    names: Mutex<HashSet<Name>>,
}

impl Crowds {
    /// Whether somebody may wait for it.
    pub(super) fn expects(&self, name: &Name) -> bool {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Somebody was seen to wait for it, or nobody.
    pub(super) fn saw(&self, name: &Name, waits: bool) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if !waits {
            names.remove(name);
            return;
        }
        if names.len() >= MOST {
            names.clear();
        }
        names.insert(name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_expected_until_nobody_was_seen_and_all_are_bounded() {
        let (crowds, name) = (Crowds::default(), Name::try_from("a").unwrap());
        assert!(!crowds.expects(&name));
        crowds.saw(&name, true);
        assert!(crowds.expects(&name));
        crowds.saw(&name, false);
        assert!(!crowds.expects(&name));
        for number in 0..=MOST {
            crowds.saw(&Name::try_from(&*format!("n{number}")).unwrap(), true);
        }
        assert!(crowds.names.lock().unwrap().len() <= MOST);
    }
}
