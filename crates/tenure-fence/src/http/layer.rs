//! The server's side of the header, as a `tower` layer.
//!
//! For each request the layer puts the fence into a cell of a Tenure store, on the condition that
//! no larger one is there. All servers that share the store thus share the memory, and one call
//! both compares and remembers. A cell that this layer writes has no time to live and is never
//! removed: a fence that is forgotten lets a late request in.
//!
//! | request | response |
//! |---|---|
//! | no `Tenure-Fence` | 428 Precondition Required (RFC 6585) |
//! | more than one, or not a number below 2^53 | 400 Bad Request |
//! | no resource could be made of it | 400 Bad Request |
//! | a smaller fence than was seen | 412 Precondition Failed, with `Tenure-Fence` |
//! | the store does not answer | 503 Service Unavailable: what cannot be compared is not let in |
//!
//! Each has a body `application/problem+json` (RFC 9457). It shows numbers and fixed text alone,
//! nothing that a client sent as text.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use tenure::{Error, Fence, Name, Put, PutVerdict, Tenure};
use tower_layer::Layer;
use tower_service::Service;

use super::{HeaderProblem, TENURE_FENCE, fence_in};
use crate::refusal::{Refusal, Resource, report};

type ResourceOf = Arc<dyn Fn(&Parts) -> Result<Option<Name>, Error> + Send + Sync>;

/// A `tower` layer that turns late requests away, and hands the fence of the others to the handler
/// as a request extension of the type [`Fence`].
///
/// **It does not replace the check where the handler writes.** A request that was let in may be
/// overtaken before its handler writes: it is paused, the lock passes on, the next holder's request
/// comes and writes, and then the first one goes on. So the handler gives the fence to the write
/// itself, as with every other resource. What the layer adds is that most late requests end early,
/// before they read, compute or call others.
///
/// The body of responses must be made from a `String`, as that of `axum` and
/// `http_body_util::Full` can be.
///
/// # Examples
/// ```
/// use http::{Method, Request, Response};
/// use tenure::{Fence, Tenure};
/// use tenure_fence::http::{FenceLayer, set_fence};
/// use tower::{Layer, ServiceExt};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// // Which requests are checked, and against which resource: here each PUT, by its path.
/// let layer = FenceLayer::new(tenure, |request| {
///     let writes = request.method == Method::PUT;
///     if writes { request.uri.path().parse().map(Some) } else { Ok(None) }
/// });
/// let service = layer.layer(tower::service_fn(async |request: Request<()>| {
///     let fence = request.extensions().get::<Fence>();
///     Ok::<_, std::convert::Infallible>(Response::new(format!("{fence:?}")))
/// }));
/// let put = |fence| {
///     let mut request = Request::put("/accounts/17").body(()).unwrap();
///     set_fence(request.headers_mut(), Fence::new(fence)).unwrap();
///     service.clone().oneshot(request)
/// };
/// assert_eq!(put(9).await.unwrap().body(), "Some(Fence(9))");
/// assert_eq!(put(8).await.unwrap().status(), 412);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct FenceLayer {
    tenure: Tenure,
    resource: ResourceOf,
}

impl FenceLayer {
    /// A layer that remembers fences in the cells of this store. `resource` says for each request
    /// which cell has the fence of what it writes; `None` for a request that needs no fence, which
    /// passes unchecked. An error, for example of a name that cannot be parsed, refuses the request
    /// with 400. A cell may have the name of the lock: the two do not meet.
    pub fn new(
        tenure: Tenure,
        resource: impl Fn(&Parts) -> Result<Option<Name>, Error> + Send + Sync + 'static,
    ) -> Self {
        Self { tenure, resource: Arc::new(resource) }
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { layer: self.clone(), inner }
    }
}

/// A service that turns late requests away. Made by [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct FenceService<S> {
    layer: FenceLayer,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for FenceService<S>
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
            let (mut parts, body) = request.into_parts();
            match layer.admit(&parts).await {
                Ok(None) => {}
                Ok(Some(fence)) => {
                    parts.extensions.insert(fence);
                }
                Err(problem) => return Ok(problem.into_response()),
            }
            inner.call(Request::from_parts(parts, body)).await
        })
    }
}

impl FenceLayer {
    /// Compares and remembers the fence of a request. `None` if it needs none.
    async fn admit(&self, request: &Parts) -> Result<Option<Fence>, Problem> {
        let Some(name) = (self.resource)(request).map_err(|_| Problem::Resource)? else {
            return Ok(None);
        };
        let fence = fence_in(&request.headers).map_err(Problem::Header)?;
        let put = Put::new(name.clone(), Vec::new()).fenced(fence);
        match self.tenure.cells().put(&put).await {
            Ok(PutVerdict::Done(_)) => Ok(Some(fence)),
            Ok(PutVerdict::Stale(seen)) => {
                report(Refusal::new(Resource::Http, name.as_str(), fence, seen));
                Err(Problem::Stale { given: fence, seen })
            }
            Ok(PutVerdict::Refused(_)) => {
                tracing::error!("the store refused a fenced put to the cell {:?}", name.as_str());
                Err(Problem::Unavailable)
            }
            Err(error) => {
                tracing::warn!("the fence of a request could not be compared: {error}");
                Err(Problem::Unavailable)
            }
        }
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("tenure", &self.tenure).finish_non_exhaustive()
    }
}

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    Resource,
    Header(HeaderProblem),
    Stale { given: Fence, seen: Fence },
    Unavailable,
}

impl Problem {
    fn into_response<R: From<String>>(self) -> Response<R> {
        let (status, kind, title) = self.words();
        let numbers = match self {
            Self::Stale { given, seen } => format!(r#","given":{given},"seen":{seen}"#),
            _ => String::new(),
        };
        let code = status.as_u16();
        let body =
            format!(r#"{{"type":"urn:tenure:{kind}","title":"{title}","status":{code}{numbers}}}"#);
        let mut response = Response::new(R::from(body));
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        if let Self::Stale { seen, .. } = self {
            response.headers_mut().insert(TENURE_FENCE, HeaderValue::from(seen.get()));
        }
        response
    }

    /// Status, type and title. None of them has a character that JSON would escape.
    fn words(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Resource => (
                StatusCode::BAD_REQUEST,
                "invalid-resource",
                "the request does not say which resource its fence is for",
            ),
            Self::Header(HeaderProblem::Missing) => (
                StatusCode::PRECONDITION_REQUIRED,
                "fence-required",
                "the request has no Tenure-Fence header: send the fence of your lock",
            ),
            Self::Header(HeaderProblem::Repeated) => (
                StatusCode::BAD_REQUEST,
                "invalid-fence",
                "the request has more than one Tenure-Fence header",
            ),
            Self::Header(HeaderProblem::Invalid) => (
                StatusCode::BAD_REQUEST,
                "invalid-fence",
                "Tenure-Fence is not a fence: decimal digits, below 2^53",
            ),
            Self::Stale { .. } => (
                StatusCode::PRECONDITION_FAILED,
                "stale-fence",
                "stale fence refused: the lock was lost, and another holder has come",
            ),
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "fence-store-unavailable",
                "the fence could not be compared: try again later",
            ),
        }
    }
}
