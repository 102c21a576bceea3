//! Values and hashes of Redis that refuse stale writers: one script each, on a connection of the
//! caller.
//!
//! A script compares and writes in one step of the server. A value has its fence in a second key,
//! a hash in a field of its own. Neither ever gets a time to live: a fence that is forgotten lets
//! a stale writer in. Keys, fields and values travel as `KEYS` and `ARGV` alone.
//!
//! On a cluster both keys must be in one slot. So the key of a fence is made to have the hash tag
//! of the value's key (`fence_key`).

use std::sync::LazyLock;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{RedisError, Script, ScriptInvocation};
use tenure::{Error, ErrorKind, Fence};

use crate::refusal::{Resource, check, parse, valid};

static SET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/set.lua")));
static HSET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/hset.lua")));

/// What is appended to the key of a value for the key of its fence.
const SUFFIX: &[u8] = b":tenure-fence";
/// The field of a hash that has its fence.
const FIELD: &[u8] = b"tenure-fence";

/// A value of Redis that refuses a smaller fence than has written it.
///
/// The fence is in a key of its own: that of the value with `:tenure-fence` appended, and in
/// braces if it has no hash tag, so that a cluster keeps both in one slot.
///
/// # Examples
/// ```no_run
/// # async fn example(client: redis::Client, guard: tenure::MutexGuard)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_fence::redis::FencedValue;
///
/// let mut connection = client.get_multiplexed_async_connection().await?;
/// FencedValue::new("balance:17").set(&mut connection, "100", guard.fence()?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedValue {
    key: Vec<u8>,
    fence: Vec<u8>,
}

impl FencedValue {
    /// The value of this key.
    #[must_use]
    pub fn new(key: impl Into<Vec<u8>>) -> Self {
        let key = key.into();
        Self { fence: fence_key(&key), key }
    }

    /// The fence is in another key. On a cluster it must have the same hash tag.
    #[must_use]
    pub fn fence_in(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.fence = key.into();
        self
    }

    /// Sets the value, unless a larger fence has written it. As `SET` does, it replaces a value of
    /// any type and ends its time to live.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with a [`Refusal`](crate::Refusal) as its cause if a larger fence
    /// has written; [`ErrorKind::Corrupt`] if the key of the fence has no fence. Nothing is
    /// written then. Otherwise if the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the value may be written all the same. Repeating it with the
    /// same fence does no harm.
    pub async fn set(
        &self,
        connection: &mut impl ConnectionLike,
        value: impl AsRef<[u8]>,
        fence: Fence,
    ) -> Result<(), Error> {
        self.send(connection, value.as_ref(), fence, 0).await
    }

    /// Sets the value as [`set`](Self::set) does, with a time to live. The fence stays.
    ///
    /// # Errors
    /// As [`set`](Self::set); [`ErrorKind::InvalidOption`] if the time is shorter than a
    /// millisecond.
    ///
    /// # Cancel safety
    /// As [`set`](Self::set).
    pub async fn set_for(
        &self,
        connection: &mut impl ConnectionLike,
        value: impl AsRef<[u8]>,
        time_to_live: Duration,
        fence: Fence,
    ) -> Result<(), Error> {
        let millis = u64::try_from(time_to_live.as_millis()).unwrap_or(u64::MAX);
        if millis == 0 {
            let what = "a time to live of zero would forget the value at once";
            return Err(Error::new(ErrorKind::InvalidOption, what));
        }
        self.send(connection, value.as_ref(), fence, millis).await
    }

    async fn send(
        &self,
        connection: &mut impl ConnectionLike,
        value: &[u8],
        fence: Fence,
        millis: u64,
    ) -> Result<(), Error> {
        let number = valid(fence)?;
        let mut call = SET.prepare_invoke();
        call.key(&self.key).key(&self.fence).arg(number).arg(value).arg(millis);
        run(&call, connection, &self.key, fence).await
    }
}

/// A hash of Redis that refuses a smaller fence than has written it. The fence is in its field
/// `tenure-fence`.
///
/// # Examples
/// ```no_run
/// # async fn example(client: redis::Client, guard: tenure::MutexGuard)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_fence::redis::FencedHash;
///
/// let mut connection = client.get_multiplexed_async_connection().await?;
/// let fields = [("balance", "100"), ("currency", "EUR")];
/// FencedHash::new("account:17").set(&mut connection, fields, guard.fence()?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedHash {
    key: Vec<u8>,
    field: Vec<u8>,
}

impl FencedHash {
    /// The hash of this key.
    #[must_use]
    pub fn new(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), field: FIELD.to_vec() }
    }

    /// The fence is in another field.
    #[must_use]
    pub fn fence_in(mut self, field: impl Into<Vec<u8>>) -> Self {
        self.field = field.into();
        self
    }

    /// Sets fields of the hash, all or none, unless a larger fence has written any. Without fields
    /// it raises the fence alone.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with a [`Refusal`](crate::Refusal) as its cause if a larger fence
    /// has written; [`ErrorKind::Corrupt`] if the field of the fence has no fence;
    /// [`ErrorKind::InvalidOption`] if a field is that of the fence. Nothing is written then.
    /// Otherwise if the server cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the fields may be written all the same. Repeating it with the
    /// same fence does no harm.
    pub async fn set<F: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        connection: &mut impl ConnectionLike,
        fields: impl IntoIterator<Item = (F, V)>,
        fence: Fence,
    ) -> Result<(), Error> {
        let number = valid(fence)?;
        let mut call = HSET.prepare_invoke();
        call.key(&self.key).arg(&self.field).arg(number);
        for (field, value) in fields {
            if field.as_ref() == self.field {
                let what = format!("field {} has the fence", shown(&self.field));
                return Err(Error::new(ErrorKind::InvalidOption, what)
                    .with_help("rename your field, or the fence's with fence_in"));
            }
            call.arg(field.as_ref()).arg(value.as_ref());
        }
        run(&call, connection, &self.key, fence).await
    }
}

/// Runs a script. It returns nothing if it wrote, otherwise the larger fence.
async fn run(
    call: &ScriptInvocation<'_>,
    connection: &mut impl ConnectionLike,
    key: &[u8],
    fence: Fence,
) -> Result<(), Error> {
    let reply: Result<Option<Vec<u8>>, RedisError> = call.invoke_async(connection).await;
    let Some(seen) = reply.map_err(|error| to_error(error, key))? else { return Ok(()) };
    // The script refuses for a larger fence alone. Anything else must not pass for a write.
    let seen = parse(&seen).filter(|seen| *seen > fence).ok_or_else(|| corrupt(key))?;
    check(Resource::Redis, &String::from_utf8_lossy(key), fence, Some(seen))
}

/// What an error of the client means. Scripts check before they write, so that an error reply of
/// the server had no effect; any other error may have had one.
fn to_error(error: RedisError, key: &[u8]) -> Error {
    match error.code() {
        Some("TENUREFENCE") => corrupt(key),
        Some("CROSSSLOT") => {
            let what = format!("the fence of {} is in another slot of the cluster", shown(key));
            Error::new(ErrorKind::InvalidOption, what)
                .with_help("give a key with the same hash tag to fence_in")
                .caused_by(error)
        }
        Some("WRONGTYPE") => {
            let what = format!("{} or the key of its fence has another type", shown(key));
            Error::new(ErrorKind::InvalidOption, what).caused_by(error)
        }
        code => {
            let what = format!("Redis did not write {}: {error}", shown(key));
            let refused = code.is_some();
            let error = Error::new(ErrorKind::Unavailable, what).caused_by(error);
            if refused { error } else { error.effect_unknown() }
        }
    }
}

fn corrupt(key: &[u8]) -> Error {
    let what = format!("what stands for the fence of {} is no fence", shown(key));
    Error::new(ErrorKind::Corrupt, what)
        .with_help("find out which program writes there; set it to the highest fence in use")
}

fn shown(key: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(key))
}

/// The key for the fence of a value, in the same slot of a cluster. A key with a closing brace and
/// no hash tag cannot be wrapped; its fence may be in another slot, and a cluster then refuses.
fn fence_key(key: &[u8]) -> Vec<u8> {
    let wrap = !has_tag(key) && !key.contains(&b'}');
    let parts: [&[u8]; 3] = if wrap { [b"{", key, b"}"] } else { [b"", key, b""] };
    [&parts.concat(), SUFFIX].concat()
}

/// Whether a cluster hashes a part of the key alone: that between the first `{` and the next `}`,
/// unless it is empty.
fn has_tag(key: &[u8]) -> bool {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return false };
    key[open + 1..].iter().position(|byte| *byte == b'}').is_some_and(|length| length > 0)
}

#[cfg(test)]
mod tests {
    use super::fence_key;

    #[test]
    fn a_fence_has_the_hash_tag_of_its_value() {
        let fence_of = |key: &str| String::from_utf8(fence_key(key.as_bytes())).unwrap();
        assert_eq!(fence_of("balance"), "{balance}:tenure-fence");
        assert_eq!(fence_of("a{17}b"), "a{17}b:tenure-fence");
        assert_eq!(fence_of("a{b"), "{a{b}:tenure-fence");
        // No hash tag, and no way to make one of the whole key.
        assert_eq!(fence_of("a}b"), "a}b:tenure-fence");
        assert_eq!(fence_of("{}a"), "{}a:tenure-fence");
    }
}
