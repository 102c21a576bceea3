//! The messages of etcd's API that the client uses, each with the fields that it uses. Messages and
//! fields have etcd's own names; an unknown field of a response is skipped. The field numbers are
//! those of the protocol: the test in `field_numbers.rs` compares every one of them with a table.

use std::fmt;

use prost::{Enumeration, Message, Oneof};

/// Which cluster responded, and its revision.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SortOrder {
    None = 0,
    Ascend = 1,
    Descend = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SortTarget {
    Key = 0,
    Version = 1,
    Create = 2,
    Mod = 3,
    Value = 4,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub limit: i64,
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub sort_target: i32,
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    #[prost(bool, tag = "9")]
    pub count_only: bool,
    #[prost(int64, tag = "13")]
    pub max_create_revision: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub more: bool,
    #[prost(int64, tag = "4")]
    pub count: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub lease: i64,
    #[prost(bool, tag = "6")]
    pub ignore_lease: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PutResponse {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    pub deleted: i64,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub request: Option<Request>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
#[allow(clippy::enum_variant_names, reason = "the names of etcd's own protocol")]
pub enum Request {
    #[prost(message, tag = "1")]
    RequestRange(RangeRequest),
    #[prost(message, tag = "2")]
    RequestPut(PutRequest),
    #[prost(message, tag = "3")]
    RequestDeleteRange(DeleteRangeRequest),
}

/// The response to one operation of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResponseOp {
    #[prost(oneof = "Response", tags = "1, 2, 3")]
    pub response: Option<Response>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
#[allow(clippy::enum_variant_names, reason = "the names of etcd's own protocol")]
pub enum Response {
    #[prost(message, tag = "1")]
    ResponseRange(RangeResponse),
    #[prost(message, tag = "2")]
    ResponsePut(PutResponse),
    #[prost(message, tag = "3")]
    ResponseDeleteRange(DeleteRangeResponse),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum CompareResult {
    Equal = 0,
    Greater = 1,
    Less = 2,
    NotEqual = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum CompareTarget {
    Version = 0,
    Create = 1,
    Mod = 2,
    Value = 3,
    Lease = 4,
}

/// A condition of a transaction, on one key or on every key of a range.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Compare {
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "TargetUnion", tags = "5, 6, 7")]
    pub target_union: Option<TargetUnion>,
    #[prost(bytes = "vec", tag = "64")]
    pub range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum TargetUnion {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes = "vec", tag = "7")]
    Value(Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseRevokeResponse {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The TTL is 0 if the lease is gone.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseKeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The TTL is -1 if the lease is gone.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseTimeToLiveResponse {
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchRequest {
    #[prost(oneof = "RequestUnion", tags = "1, 2")]
    pub request_union: Option<RequestUnion>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum RequestUnion {
    #[prost(message, tag = "1")]
    CreateRequest(WatchCreateRequest),
    #[prost(message, tag = "2")]
    CancelRequest(WatchCancelRequest),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum FilterType {
    NoPut = 0,
    NoDelete = 1,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    #[prost(enumeration = "FilterType", repeated, tag = "5")]
    pub filters: Vec<i32>,
    #[prost(int64, tag = "7")]
    pub watch_id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WatchCancelRequest {
    #[prost(int64, tag = "1")]
    pub watch_id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum EventType {
    Put = 0,
    Delete = 1,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Event {
    #[prost(enumeration = "EventType", tag = "1")]
    pub r#type: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest").finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub token: String,
}

impl fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateResponse").finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MemberListRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Member {
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StatusRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct StatusResponse {
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    #[prost(uint64, tag = "5")]
    pub raft_index: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum AlarmType {
    None = 0,
    NoSpace = 1,
    Corrupt = 2,
}

/// The action is left at its default: to list all alarms.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AlarmRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct AlarmResponse {
    #[prost(message, repeated, tag = "2")]
    pub alarms: Vec<AlarmMember>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AlarmMember {
    #[prost(enumeration = "AlarmType", tag = "2")]
    pub alarm: i32,
}
