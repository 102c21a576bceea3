//! Objects in S3 and its like that refuse stale writers, by conditional puts.
//!
//! The first 64 bytes of an object are its header: the fence, and a random number for this version
//! alone. A write reads the header (one small request), compares the fences, and puts the new
//! object on the condition that the old one is still the one that was read, by its `ETag` or
//! generation. If another write came between, it starts over.
//!
//! Why in the object and not in its metadata: the `ETag` of S3 is a hash of the contents. If the
//! contents go from A to B and back to A with larger fences, the `ETag` is what it was, and the
//! delayed put of a stale writer would pass. With the fence and the random number inside, no two
//! versions have the same hash. The number also tells a writer whether its own put was done when
//! the response was lost and the client has sent it again.
//!
//! A store that cannot put on a condition must not look as if it could. So the first write of an
//! object is preceded by a put on a condition that cannot hold: a store that does not implement it
//! says so, and one that ignores it is found out.

use std::ops::Range;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, UpdateVersion,
};
use tenure::{Error, ErrorKind, Fence};
use uuid::Uuid;

use crate::refusal::{Resource, check, padded, parse};

/// Bytes of the header. Readers that do not use [`FencedObject::read`] skip them.
pub const HEADER_BYTES: usize = 64;
const HEAD: &[u8] = b"tenure-fence: ";
/// Where the fence is, after [`HEAD`].
const DIGITS: Range<usize> = HEAD.len()..HEAD.len() + 16;

/// How often a write starts over because another one came between.
const TRIES: usize = 16;

/// An object that refuses a smaller fence than has written it.
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use object_store::{memory::InMemory, path::Path};
/// use tenure::Tenure;
/// use tenure_fence::{Refusal, object::FencedObject};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let report = FencedObject::new(Arc::new(InMemory::new()), Path::from("report.csv"));
///
/// let guard = tenure.mutex("report")?.lock().await?;
/// let late = guard.fence()?;
/// guard.release().await?;
///
/// let guard = tenure.mutex("report")?.lock().await?;
/// report.write("from the second holder", guard.fence()?).await?;
///
/// // The first holder wakes up and writes with the fence it had.
/// let error = report.write("from the first holder", late).await.unwrap_err();
/// assert_eq!(Refusal::in_error(&error).unwrap().given(), late);
/// assert_eq!(report.read().await?.unwrap().data, b"from the second holder");
/// # guard.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct FencedObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
}

/// What an object has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedData {
    /// The fence that wrote it.
    pub fence: Fence,
    /// The bytes that were written, without the header.
    pub data: Vec<u8>,
}

impl FencedObject {
    /// The object at this path. It need not exist; if it does, it was written by this type.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self { store, path }
    }

    /// Replaces the object, unless a larger fence has written it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with a [`Refusal`](crate::Refusal) as its cause if a larger fence
    /// has written, and without one if other writers came between again and again;
    /// [`ErrorKind::Unsupported`] if the store cannot put on a condition;
    /// [`ErrorKind::Corrupt`] if the object was not written by this type. Otherwise if the store
    /// cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the object may be written all the same. Repeating it with the
    /// same fence does no harm.
    pub async fn write(&self, data: impl AsRef<[u8]>, fence: Fence) -> Result<(), Error> {
        let header = Header { fence, write: Uuid::new_v4() };
        let head = header.to_bytes()?;
        let payload = PutPayload::from([&head[..], data.as_ref()].concat());
        for _ in 0..TRIES {
            let mode = match self.header().await? {
                Some((found, _)) if found == header => return Ok(()),
                Some((found, version)) => {
                    check(Resource::Object, self.path.as_ref(), fence, Some(found.fence))?;
                    PutMode::Update(version)
                }
                None => {
                    self.probe(&head).await?;
                    PutMode::Create
                }
            };
            match self.store.put_opts(&self.path, payload.clone(), PutOptions::from(mode)).await {
                Ok(_) => return Ok(()),
                // The object is another one by now. It is read again.
                Err(StoreError::Precondition { .. } | StoreError::AlreadyExists { .. }) => {}
                Err(error) => return Err(self.put_failed(error)),
            }
        }
        let what = format!("other writers came between {TRIES} times: {:?}", self.path.as_ref());
        Err(Error::new(ErrorKind::Conflict, what)
            .with_help("check that you still hold the lock, and repeat the write"))
    }

    /// Reads the object and the fence that wrote it. `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the object was not written by this type; otherwise if the store
    /// cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Reading changes nothing.
    pub async fn read(&self) -> Result<Option<FencedData>, Error> {
        let Some(found) = self.found(self.store.get(&self.path).await)? else { return Ok(None) };
        let bytes = found.bytes().await.map_err(|error| self.trouble("read", error))?;
        let header = self.parse(&bytes)?;
        Ok(Some(FencedData { fence: header.fence, data: bytes[HEADER_BYTES..].to_vec() }))
    }

    /// The header of the object, and the version that it is of.
    async fn header(&self) -> Result<Option<(Header, UpdateVersion)>, Error> {
        let range = Some(GetRange::Bounded(0..HEADER_BYTES as u64));
        let options = GetOptions { range, ..GetOptions::default() };
        let found = self.store.get_opts(&self.path, options).await;
        let Some(found) = self.found(found)? else { return Ok(None) };
        let version =
            UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let bytes = found.bytes().await.map_err(|error| self.trouble("read", error))?;
        Ok(Some((self.parse(&bytes)?, version)))
    }

    /// Puts the object, which does not exist, on a condition that cannot hold. Without data: it is
    /// not to be stored.
    async fn probe(&self, head: &[u8]) -> Result<(), Error> {
        // Stores compare the one or the other. A generation of Google's store is a large number.
        let never = UpdateVersion {
            e_tag: Some("\"tenure-fence-never\"".into()),
            version: Some("1".into()),
        };
        let options = PutOptions::from(PutMode::Update(never));
        match self.store.put_opts(&self.path, head.to_vec().into(), options).await {
            Err(StoreError::Precondition { .. } | StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.put_failed(error)),
            Ok(_) => {
                let what = format!(
                    "{} ignores the condition of a put: {:?} was created, without data",
                    self.store,
                    self.path.as_ref()
                );
                Err(Error::new(ErrorKind::Unsupported, what)
                    .effect_unknown()
                    .with_help("fences cannot be checked there: use another store"))
            }
        }
    }

    fn found(&self, got: Result<GetResult, StoreError>) -> Result<Option<GetResult>, Error> {
        match got {
            Ok(found) => Ok(Some(found)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.trouble("read", error)),
        }
    }

    fn parse(&self, bytes: &[u8]) -> Result<Header, Error> {
        Header::parse(bytes).ok_or_else(|| {
            let what = format!("the object {:?} has no fence", self.path.as_ref());
            Error::new(ErrorKind::Corrupt, what)
                .with_help("another program wrote it: write what it has to another path")
        })
    }

    fn put_failed(&self, error: StoreError) -> Error {
        if matches!(error, StoreError::NotImplemented { .. } | StoreError::NotSupported { .. }) {
            let what = format!(
                "{} cannot put on a condition, so that nothing keeps a stale writer from \
                 overwriting {:?}",
                self.store,
                self.path.as_ref()
            );
            return Error::new(ErrorKind::Unsupported, what)
                .with_help("for local files use tenure_fence::file::FencedFile")
                .caused_by(error);
        }
        self.trouble("write", error).effect_unknown()
    }

    fn trouble(&self, verb: &str, error: StoreError) -> Error {
        let what = format!("could not {verb} the object {:?}: {error}", self.path.as_ref());
        Error::new(ErrorKind::Unavailable, what).caused_by(error)
    }
}

/// The first bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    fence: Fence,
    /// Made anew for each call of `write`.
    write: Uuid,
}

impl Header {
    fn to_bytes(self) -> Result<[u8; HEADER_BYTES], Error> {
        let mut bytes = [b' '; HEADER_BYTES];
        bytes[..HEAD.len()].copy_from_slice(HEAD);
        bytes[DIGITS].copy_from_slice(padded(self.fence)?.as_bytes());
        self.write.simple().encode_lower(&mut bytes[DIGITS.end + 1..HEADER_BYTES - 1]);
        bytes[HEADER_BYTES - 1] = b'\n';
        Ok(bytes)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_BYTES).filter(|bytes| bytes.starts_with(HEAD))?;
        let write = Uuid::try_parse_ascii(&bytes[DIGITS.end + 1..HEADER_BYTES - 1]).ok()?;
        Some(Self { fence: parse(&bytes[DIGITS])?, write })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_one_line_of_64_bytes_and_is_read_back() {
        let header = Header { fence: Fence::new(17), write: Uuid::from_u128(5) };
        let bytes = header.to_bytes().unwrap();
        let line = "tenure-fence: 0000000000000017 00000000000000000000000000000005\n";
        assert_eq!(std::str::from_utf8(&bytes), Ok(line));
        assert_eq!(Header::parse(&bytes), Some(header));
        assert_eq!(Header::parse(&bytes[..63]), None);
        assert_eq!(Header::parse(&line.replace("17", "1x").into_bytes()), None);
    }
}
