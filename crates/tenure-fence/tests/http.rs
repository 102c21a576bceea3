//! The header and the layer: before a handler, behind a real server, and over two servers that
//! share a store.

use std::convert::Infallible;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use servers::Redis;
use tenure::{Fence, Tenure};
use tenure_fence::file::FencedFile;
use tenure_fence::http::{FenceLayer, TENURE_FENCE, check_response, set_fence};
use tenure_fence::{Refusal, Resource};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt, service_fn};

fn fence(number: u64) -> Fence {
    Fence::new(number)
}

/// Every PUT is checked, by its path.
fn layer(tenure: &Tenure) -> FenceLayer {
    FenceLayer::new(tenure.clone(), |request| {
        let writes = request.method == Method::PUT;
        if writes { request.uri.path().parse().map(Some) } else { Ok(None) }
    })
}

fn put(path: &str, number: u64) -> Request<()> {
    let mut request = Request::put(path).body(()).unwrap();
    set_fence(request.headers_mut(), fence(number)).unwrap();
    request
}

/// Sends a request through the layer to a handler that returns the fence it was handed.
async fn send(layer: &FenceLayer, request: Request<()>) -> Response<String> {
    let handler = service_fn(async |request: Request<()>| {
        let fence = request.extensions().get::<Fence>().map(|fence| fence.get());
        Ok::<_, Infallible>(Response::new(format!("{fence:?}")))
    });
    layer.layer(handler).oneshot(request).await.unwrap()
}

#[tokio::test]
async fn a_late_request_is_turned_away_with_both_fences() {
    let layer = layer(&Tenure::connect("memory:").await.unwrap());
    for number in [8, 8, 9] {
        let response = send(&layer, put("/a", number)).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(*response.body(), format!("Some({number})"));
        check_response(&response, "/a", fence(number)).unwrap();
    }
    let response = send(&layer, put("/a", 8)).await;
    assert_eq!(response.status(), StatusCode::PRECONDITION_FAILED);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(response.body()).unwrap();
    assert_eq!(problem["type"], "urn:tenure:stale-fence");
    assert_eq!(
        (&problem["status"], &problem["given"], &problem["seen"]),
        (&412.into(), &8.into(), &9.into())
    );
    let error = check_response(&response, "/a", fence(8)).unwrap_err();
    let refusal = Refusal::in_error(&error).unwrap();
    assert_eq!(refusal.resource(), Resource::Http);
    assert_eq!((refusal.given(), refusal.seen()), (fence(8), fence(9)));
    // Another resource has its own fence, and a read needs none.
    assert_eq!(send(&layer, put("/b", 8)).await.status(), StatusCode::OK);
    let read = Request::get("/a").body(()).unwrap();
    assert_eq!(send(&layer, read).await.body(), "None");
    // A 412 of another origin is not ours.
    let other = Response::builder().status(412).body(()).unwrap();
    check_response(&other, "/a", fence(8)).unwrap();
}

#[tokio::test]
async fn a_request_without_a_proper_fence_is_told_what_is_wrong() {
    let layer = layer(&Tenure::connect("memory:").await.unwrap());
    let expect = async |request: Request<()>, status: u16, kind: &str| {
        let said = format!("{request:?}");
        let response = send(&layer, request).await;
        assert_eq!(response.status().as_u16(), status, "{said}");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert!(!response.headers().contains_key(TENURE_FENCE), "{said}");
        let problem: serde_json::Value = serde_json::from_str(response.body()).unwrap();
        assert_eq!(problem["type"], format!("urn:tenure:{kind}"), "{said}");
        assert_eq!(problem["status"], status);
        assert!(problem["title"].as_str().is_some_and(|title| title.len() > 20));
    };
    let with = |value: &[u8]| Request::put("/a").header(TENURE_FENCE, value).body(()).unwrap();
    expect(Request::put("/a").body(()).unwrap(), 428, "fence-required").await;
    for bad in ["", "x", "-1", "+1", "1.0", "1e3", "0x10", "1, 2", "9007199254740992"] {
        expect(with(bad.as_bytes()), 400, "invalid-fence").await;
    }
    expect(with(b"\xff"), 400, "invalid-fence").await;
    expect(with("9".repeat(4000).as_bytes()), 400, "invalid-fence").await;
    let mut twice = with(b"1");
    twice.headers_mut().append(TENURE_FENCE, "2".parse().unwrap());
    expect(twice, 400, "invalid-fence").await;
    let long = format!("/{}", "x".repeat(5000));
    expect(put(&long, 1), 400, "invalid-resource").await;
    // None of these has changed what is remembered.
    assert_eq!(send(&layer, put("/a", 0)).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_request_that_was_let_in_and_is_overtaken_is_refused_where_it_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report");
    let layer = layer(&Tenure::connect("memory:").await.unwrap());
    let (arrived, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let handler = {
        let (path, arrived, go_on) = (path.clone(), Arc::clone(&arrived), Arc::clone(&go_on));
        service_fn(move |request: Request<&'static str>| {
            let (path, arrived, go_on) = (path.clone(), Arc::clone(&arrived), Arc::clone(&go_on));
            async move {
                let fence = *request.extensions().get::<Fence>().expect("it was let in");
                if fence == Fence::new(1) {
                    arrived.add_permits(1);
                    go_on.acquire().await.unwrap().forget();
                }
                let outcome = FencedFile::new(path).write(*request.body(), fence);
                Ok::<_, Infallible>(match outcome {
                    Ok(()) => Response::new("written".to_owned()),
                    Err(error) => {
                        let refusal = Refusal::in_error(&error).expect("it is stale");
                        // By the file, not by the layer.
                        assert_eq!(refusal.resource(), Resource::File);
                        Response::builder().status(409).body(refusal.to_string()).unwrap()
                    }
                })
            }
        })
    };
    let service = layer.layer(handler);
    let request = |number, body| put("/report", number).map(|()| body);
    let first = tokio::spawn(service.clone().oneshot(request(1, "from the first")));
    // The layer let the first request in; its handler is paused before it writes.
    arrived.acquire().await.unwrap().forget();
    let second = service.clone().oneshot(request(2, "from the second")).await.unwrap();
    assert_eq!(second.body(), "written");
    // One more than is needed: a request that should be turned away must not hang here.
    go_on.add_permits(2);
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.status(), 409);
    assert!(first.body().ends_with("has fence 2, the writer has 1"), "{}", first.body());
    assert_eq!(fs::read_to_string(&path).unwrap(), "from the second");
    // From now on the layer turns it away.
    let again = service.oneshot(request(1, "from the first")).await.unwrap();
    assert_eq!(again.status(), StatusCode::PRECONDITION_FAILED);
}

/// Serves the layer over TCP. Returns its port.
async fn serve(layer: FenceLayer) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let handler = service_fn(async |request: Request<Incoming>| {
                let fence = request.extensions().get::<Fence>().map(|fence| fence.get());
                let body = Full::<Bytes>::from(format!("{fence:?}"));
                Ok::<_, Infallible>(Response::new(body))
            });
            let service = TowerToHyperService::new(layer.layer(handler));
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

/// Sends a request as bytes. Returns the whole response.
async fn over_tcp(port: u16, headers: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("PUT /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_share_a_store_share_what_they_remember() {
    let redis = Redis::start();
    let connect = async || {
        let builder = Tenure::builder().call_limit(Duration::from_secs(2));
        builder.connect(&redis.url()).await.unwrap()
    };
    let one = serve(layer(&connect().await)).await;
    let two = serve(layer(&connect().await)).await;
    let response = over_tcp(one, "Tenure-Fence: 9\r\n").await;
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("Some(9)"), "{response}");
    let response = over_tcp(two, "tenure-fence: 8\r\n").await;
    assert!(response.starts_with("HTTP/1.1 412"), "{response}");
    assert!(response.contains("tenure-fence: 9\r\n"), "{response}");
    let response = over_tcp(two, "").await;
    assert!(response.starts_with("HTTP/1.1 428"), "{response}");
    // What cannot be compared is not let in.
    redis.kill();
    let response = over_tcp(two, "Tenure-Fence: 10\r\n").await;
    assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    assert!(response.contains("urn:tenure:fence-store-unavailable"), "{response}");
}
