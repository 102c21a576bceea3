//! A `tower` layer for the rates of [`tenure`]: requests over a limit are refused, and every
//! response says how much is left.
//!
//! | request | response |
//! |---|---|
//! | within its limits | that of the service, with `RateLimit` and `RateLimit-Policy` |
//! | over a limit | 429 Too Many Requests, with both and `Retry-After` |
//! | the closure returns an error | 400 Bad Request |
//! | the store does not answer | 503, unless [`RateLayer::admit_without_store`] |
//!
//! `RateLimit-Policy` lists the limits as `"60s";q=100;w=60`: permits and window in seconds.
//! `RateLimit` is about the limit with the least left: `"60s";r=42;t=60`, what remains and in how
//! many seconds it is unused again (draft-ietf-httpapi-ratelimit-headers). `Retry-After` is exact
//! for this request, rounded up to seconds.
//!
//! Bodies of refusals are `application/problem+json` (RFC 9457), with fixed text and numbers alone.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use tenure::{Error, ErrorKind, Rate, RateLimit, RateStatus, TakeOutcome};
use tower_layer::Layer;
use tower_service::Service;

/// The header that says how much is left.
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The header that lists the limits.
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

type RateOf = Arc<dyn Fn(&Parts) -> Result<Option<Rate>, Error> + Send + Sync>;

/// A `tower` layer that refuses requests over a rate. See the README of the crate for an example.
///
/// The body of responses must be made from a `String`, as that of `axum` and
/// `http_body_util::Full` can be.
#[derive(Clone)]
pub struct RateLayer {
    rate: RateOf,
    admit_without_store: bool,
}

impl RateLayer {
    /// `rate` says for each request which rate it counts for, with its limits; `None` for a request
    /// that is not limited. An error refuses the request with 400.
    pub fn new(
        rate: impl Fn(&Parts) -> Result<Option<Rate>, Error> + Send + Sync + 'static,
    ) -> Self {
        Self { rate: Arc::new(rate), admit_without_store: false }
    }

    /// Lets requests in when the store does not answer, instead of refusing them with 503.
    #[must_use]
    pub fn admit_without_store(mut self) -> Self {
        self.admit_without_store = true;
        self
    }

    /// Takes a permit for a request. Returns what to add to its response.
    async fn admit(&self, request: &Parts) -> Result<Option<RateStatus>, Problem> {
        let rate = (self.rate)(request).map_err(|_| Problem::Request)?;
        let Some(rate) = rate else { return Ok(None) };
        match rate.take(1).await {
            Ok(TakeOutcome::Allowed(permit)) => Ok(Some(permit.status().clone())),
            Ok(TakeOutcome::Refused(refusal)) => {
                Err(Problem::Over(refusal.retry_after(), refusal.status().clone()))
            }
            Err(error) => {
                tracing::warn!("a request could not be counted: {error}");
                let away = error.kind() == ErrorKind::Unavailable;
                if away && self.admit_without_store { Ok(None) } else { Err(Problem::Store) }
            }
        }
    }
}

impl fmt::Debug for RateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLayer")
            .field("admit_without_store", &self.admit_without_store)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RateLayer {
    type Service = RateService<S>;

    fn layer(&self, inner: S) -> RateService<S> {
        RateService { layer: self.clone(), inner }
    }
}

/// A service that refuses requests over a rate. Made by [`RateLayer`].
#[derive(Clone, Debug)]
pub struct RateService<S> {
    layer: RateLayer,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for RateService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let layer = self.layer.clone();
        // The one that is ready serves this request; the clone is asked again before the next.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let status = match layer.admit(&parts).await {
                Ok(status) => status,
                Err(problem) => return Ok(problem.into_response()),
            };
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if let Some(status) = status {
                add_headers(&mut response, &status);
            }
            Ok(response)
        })
    }
}

/// Why a request is refused.
#[derive(Debug)]
enum Problem {
    Request,
    Over(Duration, RateStatus),
    Store,
}

impl Problem {
    fn into_response<R: From<String>>(self) -> Response<R> {
        let (status, kind, title) = match &self {
            Self::Request => {
                (StatusCode::BAD_REQUEST, "invalid-request", "the request names no rate")
            }
            Self::Over(..) => (
                StatusCode::TOO_MANY_REQUESTS,
                "rate-exceeded",
                "too many requests: see Retry-After",
            ),
            Self::Store => (
                StatusCode::SERVICE_UNAVAILABLE,
                "rate-unavailable",
                "the request could not be counted: try again later",
            ),
        };
        let code = status.as_u16();
        let body = format!(r#"{{"type":"urn:tenure:{kind}","title":"{title}","status":{code}}}"#);
        let mut response = Response::new(R::from(body));
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        if let Self::Over(retry_after, status) = &self {
            let seconds = HeaderValue::from(whole_seconds(*retry_after));
            response.headers_mut().insert(RETRY_AFTER, seconds);
            add_headers(&mut response, status);
        }
        response
    }
}

fn add_headers<R>(response: &mut Response<R>, status: &RateStatus) {
    let policies: Vec<String> = status.limits().map(|(limit, _)| policy(&limit)).collect();
    let (limit, level) = status.tightest();
    let left =
        format!("{};r={};t={}", name(&limit), status.remaining(), whole_seconds(level.clear_after));
    let headers = [(RATE_LIMIT_POLICY, policies.join(", ")), (RATE_LIMIT, left)];
    for (header, text) in headers {
        // Digits and quotes: always a value.
        if let Ok(value) = HeaderValue::try_from(text) {
            response.headers_mut().insert(header, value);
        }
    }
}

fn policy(limit: &RateLimit) -> String {
    format!("{};q={};w={}", name(limit), limit.permits, whole_seconds(limit.window))
}

/// The name of a limit: its window.
fn name(limit: &RateLimit) -> String {
    let window = limit.window;
    if window.subsec_nanos() == 0 {
        format!("\"{}s\"", window.as_secs())
    } else {
        format!("\"{}ms\"", window.as_millis())
    }
}

/// Rounded up: a client that comes back then is not too early.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The README is compiled and run as a test.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
}
