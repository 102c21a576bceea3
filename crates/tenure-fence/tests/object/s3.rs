//! A server on loopback that speaks as much of S3 as the tests need: get, with ranges, and put, on
//! a condition or without. An `ETag` is a hash of the contents, as in S3. Debian has no server that
//! speaks S3, so that the tests bring this one.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_RANGE, ETAG, IF_MATCH, IF_NONE_MATCH, LAST_MODIFIED, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// How long a test waits for what must happen at once, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server. Ends with the runtime of its test.
#[derive(Clone)]
pub(crate) struct S3(Arc<State>);

struct State {
    port: u16,
    objects: Mutex<HashMap<String, Bytes>>,
    /// Puts that were done.
    puts: AtomicUsize,
    /// Does not look at conditions.
    ignores_conditions: AtomicBool,
    /// The next put that is done is answered with a failure all the same.
    loses_response: AtomicBool,
    /// The next put waits for a permit of `held` before it is looked at.
    holds_put: AtomicBool,
    arrived: Semaphore,
    held: Semaphore,
}

impl S3 {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self(Arc::new(State {
            port: listener.local_addr().unwrap().port(),
            objects: Mutex::default(),
            puts: AtomicUsize::new(0),
            ignores_conditions: AtomicBool::new(false),
            loses_response: AtomicBool::new(false),
            holds_put: AtomicBool::new(false),
            arrived: Semaphore::new(0),
            held: Semaphore::new(0),
        }));
        let accepting = server.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let server = accepting.clone();
                let service = service_fn(move |request| {
                    let server = server.clone();
                    async move { Ok::<_, Infallible>(server.answer(request).await) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        server
    }

    pub(crate) fn client(&self) -> AmazonS3 {
        AmazonS3Builder::new()
            .with_endpoint(format!("http://127.0.0.1:{}", self.0.port))
            .with_allow_http(true)
            .with_http_connector(Connector)
            .with_region("nowhere")
            .with_bucket_name("bucket")
            .with_access_key_id("key")
            .with_secret_access_key("secret")
            .build()
            .unwrap()
    }

    pub(crate) fn ignore_conditions(&self) {
        self.0.ignores_conditions.store(true, Ordering::SeqCst);
    }

    pub(crate) fn lose_next_response(&self) {
        self.0.loses_response.store(true, Ordering::SeqCst);
    }

    /// Holds the next put back, as a network may.
    pub(crate) fn hold_next_put(&self) {
        self.0.holds_put.store(true, Ordering::SeqCst);
    }

    /// Waits until a put is held back.
    pub(crate) async fn put_is_held(&self) {
        let arrived = tokio::time::timeout(PATIENCE, self.0.arrived.acquire()).await;
        arrived.expect("a put arrives").unwrap().forget();
    }

    pub(crate) fn let_put_go(&self) {
        self.0.held.add_permits(1);
    }

    /// How many puts were done.
    pub(crate) fn puts(&self) -> usize {
        self.0.puts.load(Ordering::SeqCst)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match *request.method() {
            Method::GET => self.get(&request),
            Method::PUT => self.put(request).await,
            _ => status(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    fn get(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let objects = self.0.objects.lock().unwrap();
        let Some(object) = objects.get(request.uri().path()) else {
            return status(StatusCode::NOT_FOUND);
        };
        let response = Response::builder()
            .header(ETAG, etag(object))
            .header(LAST_MODIFIED, "Wed, 21 Oct 2015 07:28:00 GMT");
        let Some(range) = request.headers().get(RANGE) else {
            return response.body(Full::new(object.clone())).unwrap();
        };
        let range = range.to_str().unwrap().strip_prefix("bytes=").unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let first: usize = first.parse().unwrap();
        let end = object.len().min(last.parse::<usize>().unwrap() + 1);
        if first >= object.len() {
            return status(StatusCode::RANGE_NOT_SATISFIABLE);
        }
        let of = format!("bytes {first}-{}/{}", end - 1, object.len());
        let response = response.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, of);
        response.body(Full::new(object.slice(first..end))).unwrap()
    }

    async fn put(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        if self.0.holds_put.swap(false, Ordering::SeqCst) {
            self.0.arrived.add_permits(1);
            self.0.held.acquire().await.unwrap().forget();
        }
        let mut objects = self.0.objects.lock().unwrap();
        let there = objects.get(head.uri.path());
        if !self.0.ignores_conditions.load(Ordering::SeqCst) {
            if let Some(wanted) = head.headers.get(IF_MATCH) {
                match there {
                    // As S3 does.
                    None => return status(StatusCode::NOT_FOUND),
                    Some(object) if etag(object) == *wanted => {}
                    Some(_) => return status(StatusCode::PRECONDITION_FAILED),
                }
            }
            if head.headers.contains_key(IF_NONE_MATCH) && there.is_some() {
                return status(StatusCode::PRECONDITION_FAILED);
            }
        }
        let etag = etag(&body);
        objects.insert(head.uri.path().to_owned(), body);
        self.0.puts.fetch_add(1, Ordering::SeqCst);
        if self.0.loses_response.swap(false, Ordering::SeqCst) {
            return status(StatusCode::SERVICE_UNAVAILABLE);
        }
        Response::builder().header(ETAG, etag).body(Full::default()).unwrap()
    }
}

/// A connection for each request, so that the tests need no larger client, and no TLS.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Self))
    }
}

#[async_trait::async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let address = request.uri().authority().unwrap().as_str().to_owned();
        let unknown = |error| HttpError::new(HttpErrorKind::Unknown, error);
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(unknown)?;
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await.map_err(unknown)?.into_parts();
        let body = body.collect().await.map_err(unknown)?.to_bytes();
        Ok(Response::from_parts(head, HttpResponseBody::from(body)))
    }
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::default()).unwrap()
}

fn etag(contents: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}
