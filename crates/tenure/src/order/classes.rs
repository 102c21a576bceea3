//! The numbers of classes, and the class of a name without an allocation: each thread remembers the
//! classes of the names that it has seen lately, and a name that it has not seen is derived into a
//! buffer of the thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::checker::{OrderChecker, hash_byte, lock};
use super::finder::ClassId;
use crate::contract::Name;
use crate::limits;

/// The numbers of classes.
#[derive(Default)]
pub(super) struct ClassNames {
    numbers: HashMap<Arc<str>, ClassId>,
    names: Vec<Arc<str>>,
}

impl OrderChecker {
    /// The number of a name's class. None if there are too many classes.
    pub(super) fn class(&self, name: &Name) -> Option<ClassId> {
        /// Classes of names that this thread has seen lately, by a hash of the name.
        type Cache = RefCell<Vec<Option<(u64, Name, ClassId)>>>;
        const SIZE: usize = 256;
        thread_local! {
            static CACHE: Cache = const { RefCell::new(Vec::new()) };
        }
        let hash = name.as_str().bytes().fold(self.0.id, hash_byte);
        let at = usize::try_from(hash >> 32).unwrap_or(0) % SIZE;
        CACHE.with_borrow_mut(|cache| {
            if cache.is_empty() {
                cache.resize(SIZE, None);
            }
            if let Some((id, known, class)) = &cache[at]
                && *id == self.0.id
                && known == name
            {
                return Some(*class);
            }
            let class = self.0.settings.classes.with_class(name, |class| self.number(class))?;
            cache[at] = Some((self.0.id, name.clone(), class));
            Some(class)
        })
    }

    /// The number of a class.
    pub(super) fn number(&self, class: &str) -> Option<ClassId> {
        let mut classes = lock(&self.0.classes);
        if let Some(number) = classes.numbers.get(class) {
            return Some(*number);
        }
        if classes.names.len() >= limits::ORDER_CLASSES {
            return None;
        }
        let number = ClassId::try_from(classes.names.len()).ok()?;
        let class: Arc<str> = Arc::from(class);
        classes.names.push(Arc::clone(&class));
        classes.numbers.insert(class, number);
        Some(number)
    }

    /// The name of a class.
    pub(super) fn class_name(&self, class: ClassId) -> Arc<str> {
        let classes = lock(&self.0.classes);
        classes.names.get(class as usize).cloned().unwrap_or_default()
    }
}
