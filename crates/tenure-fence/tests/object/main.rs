//! Fenced objects: in memory, over loopback in a server that speaks S3, and where they cannot be.

mod s3;

use std::sync::Arc;

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tenure::{Effect, Error, ErrorKind, Fence, Tenure};
use tenure_fence::object::{FencedObject, HEADER_BYTES};
use tenure_fence::{Refusal, Resource};
use tokio::task::JoinHandle;

use crate::s3::S3;

fn fence(number: u64) -> Fence {
    Fence::new(number)
}

fn object(store: impl ObjectStore) -> FencedObject {
    FencedObject::new(Arc::new(store), Path::from("reports/march.csv"))
}

async fn data(object: &FencedObject) -> (u64, Vec<u8>) {
    let read = object.read().await.unwrap().unwrap();
    (read.fence.get(), read.data)
}

#[track_caller]
fn refused(outcome: Result<(), Error>) -> (u64, u64) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let refusal = Refusal::in_error(&error).unwrap();
    assert_eq!(refusal.resource(), Resource::Object);
    (refusal.given().get(), refusal.seen().get())
}

/// What holds in every store.
async fn larger_fences_write_and_smaller_ones_do_not(object: FencedObject) {
    assert_eq!(object.read().await.unwrap(), None);
    for (turn, number) in [0, 9, 10, 10, (1 << 53) - 1].into_iter().enumerate() {
        let text = format!("turn {turn}");
        object.write(&text, fence(number)).await.unwrap();
        assert_eq!(data(&object).await, (number, text.into_bytes()));
    }
    let outcome = object.write("stale", fence((1 << 53) - 2)).await;
    assert_eq!(refused(outcome), ((1 << 53) - 2, (1 << 53) - 1));
    let error = object.write("x", fence(1 << 53)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    // An object of no bytes is an object.
    object.write("", fence((1 << 53) - 1)).await.unwrap();
    assert_eq!(data(&object).await.1, b"");
}

#[tokio::test]
async fn larger_fences_write_and_smaller_ones_do_not_in_memory() {
    larger_fences_write_and_smaller_ones_do_not(object(InMemory::new())).await;
}

#[tokio::test]
async fn larger_fences_write_and_smaller_ones_do_not_in_s3() {
    let server = S3::start().await;
    larger_fences_write_and_smaller_ones_do_not(object(server.client())).await;
}

#[tokio::test]
async fn a_paused_holder_wakes_late_and_is_refused() {
    let server = S3::start().await;
    for object in [object(InMemory::new()), object(server.client())] {
        let tenure = Tenure::connect("memory:").await.unwrap();
        let guard = tenure.mutex("report").unwrap().lock().await.unwrap();
        let late = guard.fence().unwrap();
        tenure.force_release("report", late, "it does not answer").await.unwrap();
        let holder = tenure.mutex("report").unwrap().lock().await.unwrap();
        let current = holder.fence().unwrap();
        object.write("from the next holder", current).await.unwrap();
        let outcome = object.write("from the late holder", late).await;
        assert_eq!(refused(outcome), (late.get(), current.get()));
        assert_eq!(data(&object).await, (current.get(), b"from the next holder".to_vec()));
    }
}

/// Starts a write with fence 1 that has compared its fence and whose put the server holds back, as
/// if it were somewhere in the network.
async fn held_put(server: &S3, report: &FencedObject) -> JoinHandle<Result<(), Error>> {
    server.hold_next_put();
    let report = report.clone();
    let late = tokio::spawn(async move { report.write("late", fence(1)).await });
    server.put_is_held().await;
    late
}

#[tokio::test]
async fn a_put_that_was_on_its_way_when_the_next_holder_wrote_is_refused() {
    // Over an older write, and as the first write of all.
    for before in [Some("old"), None] {
        let server = S3::start().await;
        let report = object(server.client());
        if let Some(before) = before {
            report.write(before, fence(1)).await.unwrap();
        }
        let late = held_put(&server, &report).await;
        report.write("new", fence(2)).await.unwrap();
        server.let_put_go();
        assert_eq!(refused(late.await.unwrap()), (1, 2));
        assert_eq!(data(&report).await, (2, b"new".to_vec()));
    }
}

#[tokio::test]
async fn a_late_put_does_not_pass_because_the_contents_are_again_what_they_were() {
    let server = S3::start().await;
    let report = object(server.client());
    report.write("idle", fence(1)).await.unwrap();
    let late = held_put(&server, &report).await;
    // With the fence in the metadata, the hash would now be that which the late put names.
    report.write("busy", fence(2)).await.unwrap();
    report.write("idle", fence(3)).await.unwrap();
    server.let_put_go();
    assert_eq!(refused(late.await.unwrap()), (1, 3));
    assert_eq!(data(&report).await, (3, b"idle".to_vec()));
}

#[tokio::test]
async fn a_write_whose_response_is_lost_is_known_to_be_done() {
    let server = S3::start().await;
    let report = object(server.client());
    report.write("old", fence(1)).await.unwrap();
    let before = server.puts();
    server.lose_next_response();
    report.write("new", fence(2)).await.unwrap();
    assert_eq!(server.puts(), before + 1, "it was not written twice");
    assert_eq!(data(&report).await, (2, b"new".to_vec()));
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_found_out() {
    let server = S3::start().await;
    server.ignore_conditions();
    let error = object(server.client()).write("x", fence(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.effect(), Effect::Unknown);
    assert!(error.to_string().contains("ignores the condition"), "{error}");
}

#[tokio::test]
async fn local_files_are_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let report = object(LocalFileSystem::new_with_prefix(directory.path()).unwrap());
    let error = report.write("x", fence(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.effect(), Effect::None);
    assert!(error.to_string().contains("cannot put on a condition"), "{error}");
    assert!(error.help().contains("FencedFile"), "{error}");
    assert_eq!(report.read().await.unwrap(), None);
}

#[tokio::test]
async fn an_object_of_another_program_is_an_error_and_stays() {
    let store = Arc::new(InMemory::new());
    let path = Path::from("report");
    let report = FencedObject::new(Arc::clone(&store) as Arc<dyn ObjectStore>, path.clone());
    for contents in ["short", &"x".repeat(HEADER_BYTES * 2)] {
        store.put(&path, PutPayload::from(contents.to_owned())).await.unwrap();
        let error = report.write("x", fence(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(report.read().await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), contents.as_bytes());
    }
}
