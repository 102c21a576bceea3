//! The layer before a handler: what it lets in, what it refuses, and what its headers say.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tenure::{Error, ErrorKind, Tenure};
use tenure_rate::{RATE_LIMIT, RATE_LIMIT_POLICY, RateLayer};
use tower::{Layer, ServiceExt, service_fn};

/// Sends a request through the layer to a handler that counts.
async fn send(layer: &RateLayer, path: &str, served: &Arc<AtomicU32>) -> Response<String> {
    let served = Arc::clone(served);
    let handler = service_fn(move |_: Request<()>| {
        served.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new("served".to_owned())) }
    });
    layer.layer(handler).oneshot(Request::get(path).body(()).unwrap()).await.unwrap()
}

fn header<'a>(response: &'a Response<String>, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn requests_over_a_limit_are_refused_and_told_when_to_come_back() {
    let tenure = Tenure::connect("memory:").await.unwrap();
    let layer = RateLayer::new(move |request| {
        if request.uri.path() == "/free" {
            return Ok(None);
        }
        let rate = tenure.rate(request.uri.path())?;
        Ok(Some(rate.limit(2, Duration::from_secs(3_600)).limit(9, Duration::from_secs(86_400))))
    });
    let served = Arc::new(AtomicU32::new(0));
    let first = send(&layer, "/a", &served).await;
    assert_eq!((first.status(), first.body().as_str()), (StatusCode::OK, "served"));
    let policy = "\"3600s\";q=2;w=3600, \"86400s\";q=9;w=86400";
    assert_eq!(header(&first, RATE_LIMIT_POLICY.as_str()), Some(policy));
    assert_eq!(header(&first, RATE_LIMIT.as_str()), Some("\"3600s\";r=1;t=3600"));
    assert_eq!(header(&first, "retry-after"), None);
    send(&layer, "/a", &served).await;
    let refused = send(&layer, "/a", &served).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let after: u64 = header(&refused, "retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&after), "{after}");
    assert!(header(&refused, "ratelimit").unwrap().starts_with("\"3600s\";r=0;t="));
    assert_eq!(header(&refused, "content-type"), Some("application/problem+json"));
    assert!(refused.body().contains("urn:tenure:rate-exceeded"), "{}", refused.body());
    assert_eq!(served.load(Ordering::SeqCst), 2, "the handler was not called");
    // Another key is another rate, and what is not limited has no headers.
    assert_eq!(send(&layer, "/b", &served).await.status(), StatusCode::OK);
    assert_eq!(header(&send(&layer, "/free", &served).await, "ratelimit"), None);
}

#[tokio::test]
async fn what_cannot_be_counted_is_refused_unless_the_layer_says_otherwise() {
    let served = Arc::new(AtomicU32::new(0));
    let bad = RateLayer::new(|_| Err(Error::new(ErrorKind::InvalidName, "no key")));
    assert_eq!(send(&bad, "/", &served).await.status(), StatusCode::BAD_REQUEST);
    let tenure = Tenure::connect("memory:").await.unwrap();
    let wrong = tenure.clone();
    let layer = RateLayer::new(move |_| Ok(Some(wrong.rate("a")?)));
    let response = send(&layer, "/", &served).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "a rate without limits");
    assert_eq!(served.load(Ordering::SeqCst), 0);
    tenure.close().await;
}
