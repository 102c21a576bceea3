//! Keys of etcd that refuse stale writers: the parts of one transaction, for any client.
//!
//! The fence stands in a key of its own, as 16 digits: etcd compares values as texts, and texts of
//! one length are in the order of their numbers. The comparison is "the fence that stands is
//! larger than ours", so that *then* is the refusal and *else* the write. The other way round it
//! would need a second comparison for the first write: etcd lets every comparison with the value
//! of an absent key fail.
//!
//! No client of etcd is named here. The one on crates.io needs `protoc` to build, and what a write
//! consists of is four lines in each of them.

use tenure::{Error, ErrorKind, Fence};

use crate::refusal::{Resource, check, padded, parse};

/// What is appended to a key for the key of its fence.
const SUFFIX: &[u8] = b"/tenure-fence";

/// A write to etcd that a larger fence refuses, as the parts of one transaction: map
/// [`transaction`](Self::transaction) onto your client, send it, and let
/// [`outcome`](Self::outcome) read the response.
///
/// | part | `etcd-client` | `etcdctl txn` |
/// |---|---|---|
/// | if | `Compare::value(key, CompareOp::Greater, value)` | `value("key") > "value"` |
/// | then | `TxnOp::get(key, None)` | `get key` |
/// | else | `TxnOp::put(key, value, None)` for each | `put key value` for each |
///
/// Where the lock is in the same etcd, [`tenure::Ownership`] is the stronger comparison: it holds
/// exactly as long as the lock is held, and needs no key for a fence.
///
/// # Examples
/// ```
/// use tenure::Fence;
/// use tenure_fence::{Refusal, etcd::FencedPut};
///
/// let write = FencedPut::new("balance", "100", Fence::new(8))?;
/// let transaction = write.transaction();
/// assert_eq!(transaction.fence_key, b"balance/tenure-fence");
/// assert_eq!(transaction.if_greater_than, b"0000000000000008");
/// assert_eq!(transaction.else_put.len(), 2);
///
/// // Send it. "Succeeded" is the comparison: a larger fence stands there, and was read.
/// let error = write.outcome(true, Some(b"0000000000000009")).unwrap_err();
/// assert_eq!(Refusal::in_error(&error).unwrap().seen(), Fence::new(9));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedPut {
    key: Vec<u8>,
    fence: Fence,
    digits: String,
    fence_key: Option<Vec<u8>>,
    puts: Vec<(Vec<u8>, Vec<u8>)>,
}

impl FencedPut {
    /// Puts a value. Its fence is in the key with `/tenure-fence` appended.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] if the number is no fence of Tenure.
    pub fn new(
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        fence: Fence,
    ) -> Result<Self, Error> {
        let (key, digits) = (key.into(), padded(fence)?);
        let puts = vec![(key.clone(), value.into())];
        Ok(Self { key, fence, digits, fence_key: None, puts })
    }

    /// Puts another value in the same transaction, under the fence of the first key.
    #[must_use]
    pub fn and(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.puts.push((key.into(), value.into()));
        self
    }

    /// The fence is in another key: one for several values that one lock guards.
    #[must_use]
    pub fn fence_in(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.fence_key = Some(key.into());
        self
    }

    /// The parts of the transaction. More operations may be added to its *else*, deletes too, but
    /// none to its *if*: the comparison is the refusal.
    #[must_use]
    pub fn transaction(&self) -> Transaction {
        let default = || [&self.key, SUFFIX].concat();
        let fence_key = self.fence_key.clone().unwrap_or_else(default);
        let if_greater_than = self.digits.clone().into_bytes();
        let mut else_put = vec![(fence_key.clone(), if_greater_than.clone())];
        else_put.extend(self.puts.iter().cloned());
        Transaction { fence_key, if_greater_than, else_put }
    }

    /// Reads the response: whether the comparison succeeded, and the value that was then read from
    /// the key of the fence.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with a [`Refusal`](crate::Refusal) as its cause if a larger fence
    /// has written; [`ErrorKind::Corrupt`] if that key has no fence. Nothing was written then.
    pub fn outcome(&self, succeeded: bool, read: Option<&[u8]>) -> Result<(), Error> {
        if !succeeded {
            return Ok(());
        }
        let name = String::from_utf8_lossy(&self.key);
        let seen = read.and_then(parse).filter(|seen| *seen > self.fence);
        if seen.is_none() {
            let what = format!("what stands for the fence of {name:?} is no fence");
            return Err(Error::new(ErrorKind::Corrupt, what).with_help(
                "find out which program writes there; set it to the highest fence in use, \
                 with 16 digits",
            ));
        }
        check(Resource::Etcd, &name, self.fence, seen)
    }
}

/// A transaction of etcd: *if* the value of `fence_key` is greater than `if_greater_than`, *then*
/// get `fence_key`, *else* put every pair of `else_put`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The key to compare, and to get if the comparison succeeds.
    pub fence_key: Vec<u8>,
    /// The value to compare it with.
    pub if_greater_than: Vec<u8>,
    /// The keys and values to put if the comparison fails: the fence, then the values.
    pub else_put: Vec<(Vec<u8>, Vec<u8>)>,
}
