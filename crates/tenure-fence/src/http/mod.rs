//! The header `Tenure-Fence`: a client sends the fence of its lock with each request, and a server
//! refuses one that is late ([`FenceLayer`]).
//!
//! The header has the decimal digits of the fence and nothing else. A refusal is a 412 whose own
//! `Tenure-Fence` header has the larger fence that the server has seen, so that a client can tell
//! it from another failed precondition without reading the body.
//!
//! A fence is no credential: a client that sends the largest number shuts all others out. Let the
//! server know its clients before it believes their fences.

mod layer;

pub use self::layer::{FenceLayer, FenceService};

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tenure::{Error, Fence};

use crate::refusal::{Refusal, Resource, parse, valid};

/// The header that carries a fence.
pub const TENURE_FENCE: HeaderName = HeaderName::from_static("tenure-fence");

/// Adds the fence to the headers of a request, in place of one that is there.
///
/// # Errors
/// [`ErrorKind::InvalidOption`](tenure::ErrorKind::InvalidOption) if the number is no fence of
/// Tenure.
///
/// # Examples
/// ```
/// use tenure::{Fence, Tenure};
/// use tenure_fence::http::set_fence;
///
/// let tenure = Tenure::blocking_connect("memory:")?;
/// let guard = tenure.mutex("account:17")?.blocking_lock()?;
/// let mut request = http::Request::put("/accounts/17").body("100").unwrap();
/// set_fence(request.headers_mut(), guard.fence()?)?;
/// assert_eq!(request.headers()["tenure-fence"], guard.fence()?.to_string());
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn set_fence(headers: &mut HeaderMap, fence: Fence) -> Result<(), Error> {
    headers.insert(TENURE_FENCE, HeaderValue::from(valid(fence)?));
    Ok(())
}

/// Whether a response is the refusal of a stale fence, for the client that sent it. `resource` is
/// how the refusal is to name what was written, for example the path. The server has reported the
/// refusal already: here it is not counted again.
///
/// # Errors
/// [`ErrorKind::Conflict`](tenure::ErrorKind::Conflict) with a [`Refusal`] as its cause if it is.
///
/// # Examples
/// ```
/// use tenure::Fence;
/// use tenure_fence::{Refusal, http::check_response};
///
/// let response = http::Response::builder().status(412).header("Tenure-Fence", "9").body(());
/// let error = check_response(&response.unwrap(), "/accounts/17", Fence::new(8)).unwrap_err();
/// assert_eq!(Refusal::in_error(&error).unwrap().seen(), Fence::new(9));
/// ```
pub fn check_response<B>(
    response: &Response<B>,
    resource: &str,
    given: Fence,
) -> Result<(), Error> {
    let seen = (response.status() == StatusCode::PRECONDITION_FAILED)
        .then(|| fence_in(response.headers()).ok())
        .flatten();
    match seen {
        Some(seen) => Err(Refusal::new(Resource::Http, resource, given, seen).into()),
        None => Ok(()),
    }
}

/// Why headers have no fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderProblem {
    Missing,
    Repeated,
    Invalid,
}

fn fence_in(headers: &HeaderMap) -> Result<Fence, HeaderProblem> {
    let mut values = headers.get_all(TENURE_FENCE).iter();
    let value = values.next().ok_or(HeaderProblem::Missing)?;
    if values.next().is_some() {
        return Err(HeaderProblem::Repeated);
    }
    parse(value.as_bytes()).ok_or(HeaderProblem::Invalid)
}
