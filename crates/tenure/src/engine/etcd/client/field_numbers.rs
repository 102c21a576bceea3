//! Compares every field of our messages with the numbers and types of etcd's own protocol files,
//! which are written down here as facts. A field with a wrong number is skipped in silence by both
//! sides, so nothing else would notice some of them.

use prost::Message;

use super::messages::*;

/// How a type is encoded: the lowest three bits of a key on the wire.
const VARINT: u8 = 0;
const BYTES: u8 = 2;

/// Checks that a message in which one field is set has that field and no other, with this number.
fn check(message: &impl Message, what: &str, number: u32, wire: u8) {
    let bytes = message.encode_to_vec();
    let (mut key, mut length) = (0_u32, 0);
    for byte in &bytes {
        key |= u32::from(byte & 0x7f) << (7 * length);
        length += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    assert_eq!((key >> 3, key & 7), (number, u32::from(wire)), "{what}");
    let rest = &bytes[length..];
    let end = match wire {
        VARINT => rest.iter().position(|byte| byte & 0x80 == 0).expect("a whole number") + 1,
        _ => 1 + usize::from(rest[0]),
    };
    assert_eq!(rest.len(), end, "{what}: nothing but this field is encoded");
}

/// Every field of a message: a value that is not its default, its number and its encoding. A field
/// that is left out here does not compile.
macro_rules! fields {
    ($message:ident { $($field:ident: $value:expr => $number:literal $wire:ident),* $(,)? }) => {
        let $message { $($field: _),* } = $message::default();
        $({
            let mut message = $message::default();
            message.$field = $value;
            check(&message, concat!(stringify!($message), ".", stringify!($field)), $number, $wire);
        })*
    };
}

#[test]
fn keys_and_operations_have_etcds_numbers() {
    let text = || b"x".to_vec();
    fields!(ResponseHeader {
        cluster_id: 1 => 1 VARINT,
        revision: 1 => 3 VARINT,
        raft_term: 1 => 4 VARINT,
    });
    fields!(KeyValue {
        key: text() => 1 BYTES,
        create_revision: 1 => 2 VARINT,
        mod_revision: 1 => 3 VARINT,
        value: text() => 5 BYTES,
        lease: 1 => 6 VARINT,
    });
    fields!(RangeRequest {
        key: text() => 1 BYTES,
        range_end: text() => 2 BYTES,
        limit: 1 => 3 VARINT,
        revision: 1 => 4 VARINT,
        sort_order: 1 => 5 VARINT,
        sort_target: 1 => 6 VARINT,
        keys_only: true => 8 VARINT,
        count_only: true => 9 VARINT,
        max_create_revision: 1 => 13 VARINT,
    });
    fields!(RangeResponse {
        kvs: vec![KeyValue::default()] => 2 BYTES,
        more: true => 3 VARINT,
        count: 1 => 4 VARINT,
    });
    fields!(PutRequest {
        key: text() => 1 BYTES,
        value: text() => 2 BYTES,
        lease: 1 => 3 VARINT,
        ignore_lease: true => 6 VARINT,
    });
    fields!(PutResponse {});
    fields!(DeleteRangeRequest { key: text() => 1 BYTES, range_end: text() => 2 BYTES });
    fields!(DeleteRangeResponse { deleted: 1 => 2 VARINT });
}

#[test]
fn transactions_have_etcds_numbers() {
    let text = || b"x".to_vec();
    for (request, number) in [
        (Request::RequestRange(RangeRequest::default()), 1),
        (Request::RequestPut(PutRequest::default()), 2),
        (Request::RequestDeleteRange(DeleteRangeRequest::default()), 3),
    ] {
        check(&RequestOp { request: Some(request) }, "RequestOp", number, BYTES);
    }
    for (response, number) in [
        (Response::ResponseRange(RangeResponse::default()), 1),
        (Response::ResponsePut(PutResponse {}), 2),
        (Response::ResponseDeleteRange(DeleteRangeResponse::default()), 3),
    ] {
        check(&ResponseOp { response: Some(response) }, "ResponseOp", number, BYTES);
    }
    fields!(Compare {
        result: 1 => 1 VARINT,
        target: 1 => 2 VARINT,
        key: text() => 3 BYTES,
        target_union: Some(TargetUnion::CreateRevision(1)) => 5 VARINT,
        range_end: text() => 64 BYTES,
    });
    let written = Some(TargetUnion::ModRevision(1));
    check(&Compare { target_union: written, ..Compare::default() }, "mod_revision", 6, VARINT);
    let value = Some(TargetUnion::Value(text()));
    check(&Compare { target_union: value, ..Compare::default() }, "value", 7, BYTES);
    fields!(TxnRequest {
        compare: vec![Compare::default()] => 1 BYTES,
        success: vec![RequestOp::default()] => 2 BYTES,
        failure: vec![RequestOp::default()] => 3 BYTES,
    });
    fields!(TxnResponse {
        header: Some(ResponseHeader::default()) => 1 BYTES,
        succeeded: true => 2 VARINT,
        responses: vec![ResponseOp::default()] => 3 BYTES,
    });
}

#[test]
fn leases_and_watches_have_etcds_numbers() {
    let text = || b"x".to_vec();
    fields!(LeaseGrantRequest { ttl: 1 => 1 VARINT });
    fields!(LeaseGrantResponse { id: 1 => 2 VARINT, ttl: 1 => 3 VARINT });
    fields!(LeaseRevokeRequest { id: 1 => 1 VARINT });
    fields!(LeaseRevokeResponse {});
    fields!(LeaseKeepAliveRequest { id: 1 => 1 VARINT });
    fields!(LeaseKeepAliveResponse {
        header: Some(ResponseHeader::default()) => 1 BYTES,
        ttl: 1 => 3 VARINT,
    });
    fields!(LeaseTimeToLiveRequest { id: 1 => 1 VARINT });
    fields!(LeaseTimeToLiveResponse { ttl: 1 => 3 VARINT });
    for (request, number) in [
        (RequestUnion::CreateRequest(WatchCreateRequest::default()), 1),
        (RequestUnion::CancelRequest(WatchCancelRequest::default()), 2),
    ] {
        check(&WatchRequest { request_union: Some(request) }, "WatchRequest", number, BYTES);
    }
    fields!(WatchCreateRequest {
        key: text() => 1 BYTES,
        range_end: text() => 2 BYTES,
        start_revision: 1 => 3 VARINT,
        filters: vec![1] => 5 BYTES,
        watch_id: 1 => 7 VARINT,
    });
    fields!(WatchCancelRequest { watch_id: 1 => 1 VARINT });
    fields!(WatchResponse {
        header: Some(ResponseHeader::default()) => 1 BYTES,
        watch_id: 1 => 2 VARINT,
        created: true => 3 VARINT,
        canceled: true => 4 VARINT,
        cancel_reason: "x".to_owned() => 6 BYTES,
        events: vec![Event::default()] => 11 BYTES,
    });
    fields!(Event { r#type: 1 => 1 VARINT, kv: Some(KeyValue::default()) => 2 BYTES });
}

#[test]
fn logins_and_maintenance_have_etcds_numbers() {
    let text = || "x".to_owned();
    fields!(AuthenticateRequest { name: text() => 1 BYTES, password: text() => 2 BYTES });
    fields!(AuthenticateResponse { token: text() => 2 BYTES });
    fields!(MemberListRequest {});
    fields!(MemberListResponse { members: vec![Member::default()] => 2 BYTES });
    fields!(Member { id: 1 => 1 VARINT });
    fields!(StatusRequest {});
    fields!(StatusResponse {
        version: text() => 2 BYTES,
        db_size: 1 => 3 VARINT,
        leader: 1 => 4 VARINT,
        raft_index: 1 => 5 VARINT,
    });
    fields!(AlarmRequest {});
    fields!(AlarmResponse { alarms: vec![AlarmMember::default()] => 2 BYTES });
    fields!(AlarmMember { alarm: 1 => 2 VARINT });
}

#[test]
fn choices_have_etcds_numbers() {
    use AlarmType as Alarm;
    use CompareResult as Is;
    use CompareTarget as Of;
    use SortTarget as By;
    let numbers = [SortOrder::None, SortOrder::Ascend, SortOrder::Descend].map(i32::from);
    assert_eq!(numbers, [0, 1, 2]);
    let numbers = [By::Key, By::Version, By::Create, By::Mod, By::Value].map(i32::from);
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    assert_eq!([Is::Equal, Is::Greater, Is::Less, Is::NotEqual].map(i32::from), [0, 1, 2, 3]);
    let numbers = [Of::Version, Of::Create, Of::Mod, Of::Value, Of::Lease].map(i32::from);
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    assert_eq!([FilterType::NoPut, FilterType::NoDelete].map(i32::from), [0, 1]);
    assert_eq!([EventType::Put, EventType::Delete].map(i32::from), [0, 1]);
    assert_eq!([Alarm::None, Alarm::NoSpace, Alarm::Corrupt].map(i32::from), [0, 1, 2]);
}
