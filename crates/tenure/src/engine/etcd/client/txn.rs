//! Builds the parts of transactions. Pure: makes no calls.

use super::messages::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest,
    RangeResponse, Request, RequestOp, Response, ResponseOp, TargetUnion,
};

impl Compare {
    /// Compares the revision that created a key. 0 stands for a key that does not exist.
    pub fn create_revision(key: impl Into<Vec<u8>>, result: CompareResult, revision: i64) -> Self {
        Self {
            result: result.into(),
            target: CompareTarget::Create.into(),
            key: key.into(),
            target_union: Some(TargetUnion::CreateRevision(revision)),
            range_end: Vec::new(),
        }
    }

    /// Compares the revision that last wrote a key. 0 stands for a key that does not exist.
    pub fn mod_revision(key: impl Into<Vec<u8>>, result: CompareResult, revision: i64) -> Self {
        Self {
            result: result.into(),
            target: CompareTarget::Mod.into(),
            key: key.into(),
            target_union: Some(TargetUnion::ModRevision(revision)),
            range_end: Vec::new(),
        }
    }

    /// Compares the bytes of a value. False if the key does not exist.
    pub fn value(
        key: impl Into<Vec<u8>>,
        result: CompareResult,
        value: impl Into<Vec<u8>>,
    ) -> Self {
        Self {
            result: result.into(),
            target: CompareTarget::Value.into(),
            key: key.into(),
            target_union: Some(TargetUnion::Value(value.into())),
            range_end: Vec::new(),
        }
    }

    /// Compares every key from the key up to, and without, `end`. True if there is none.
    #[must_use]
    pub fn with_range(mut self, end: Vec<u8>) -> Self {
        self.range_end = end;
        self
    }
}

impl RequestOp {
    /// Reads one key.
    pub fn get(key: impl Into<Vec<u8>>) -> Self {
        RangeRequest { key: key.into(), ..RangeRequest::default() }.into()
    }

    /// Reads the keys from `from` up to, and without, `to`.
    #[must_use]
    pub fn range(from: Vec<u8>, to: Vec<u8>) -> Self {
        RangeRequest { key: from, range_end: to, ..RangeRequest::default() }.into()
    }

    /// Writes a key on a lease; on none if it is 0.
    pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: i64) -> Self {
        let (key, value) = (key.into(), value.into());
        PutRequest { key, value, lease, ignore_lease: false }.into()
    }

    /// Deletes one key.
    pub fn delete(key: impl Into<Vec<u8>>) -> Self {
        let delete = DeleteRangeRequest { key: key.into(), range_end: Vec::new() };
        Self { request: Some(Request::RequestDeleteRange(delete)) }
    }
}

impl From<RangeRequest> for RequestOp {
    fn from(range: RangeRequest) -> Self {
        Self { request: Some(Request::RequestRange(range)) }
    }
}

impl From<RangeResponse> for ResponseOp {
    fn from(range: RangeResponse) -> Self {
        Self { response: Some(Response::ResponseRange(range)) }
    }
}

impl From<PutRequest> for RequestOp {
    fn from(put: PutRequest) -> Self {
        Self { request: Some(Request::RequestPut(put)) }
    }
}

impl ResponseOp {
    /// Whether a read was cut off by its limit.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(&self.response, Some(Response::ResponseRange(range)) if range.more)
    }

    /// How many keys a read has counted.
    #[must_use]
    pub fn count(&self) -> usize {
        match &self.response {
            Some(Response::ResponseRange(range)) => usize::try_from(range.count).unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether the operation has changed the store.
    #[must_use]
    pub fn is_change(&self) -> bool {
        match &self.response {
            Some(Response::ResponsePut(_)) => true,
            Some(Response::ResponseDeleteRange(delete)) => delete.deleted > 0,
            _ => false,
        }
    }

    /// The keys that a read has found; none for other operations.
    #[must_use]
    pub fn into_kvs(self) -> Vec<KeyValue> {
        match self.response {
            Some(Response::ResponseRange(range)) => range.kvs,
            _ => Vec::new(),
        }
    }
}
