//! TLS: which servers are trusted, and client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::fake_server::{FakeServer, Peer};
use super::{plain, text};
use crate::contract::ErrorKind;
use crate::engine::redis::client::pack;

/// An authority, and what it signed, in a directory that goes with the test.
struct Office {
    folder: tempfile::TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Office {
    fn open() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(params, key).unwrap();
        Self { folder: tempfile::tempdir().unwrap(), authority }
    }

    fn sign(&self, name: &str) -> (CertificateDer<'static>, String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        (certificate.der().clone(), certificate.pem(), key)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn ca(&self) -> PathBuf {
        self.file("ca.pem", &self.authority.pem())
    }

    /// A server with a certificate for `localhost`.
    fn acceptor(&self, wants_certificates: bool) -> TlsAcceptor {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = if wants_certificates {
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let (certificate, _, key) = self.sign("localhost");
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        TlsAcceptor::from(Arc::new(builder.with_single_cert(vec![certificate], key).unwrap()))
    }
}

fn url(server: &FakeServer, options: &[(&str, &Path)]) -> String {
    let options: Vec<_> =
        options.iter().map(|(name, path)| format!("{name}={}", path.display())).collect();
    format!("rediss://u:secret@localhost:{}?{}", server.port(), options.join("&"))
}

#[tokio::test]
async fn many_calls_and_a_password_go_through_tls() {
    let office = Office::open();
    let server = FakeServer::start().await;
    let connection = plain(&url(&server, &[("ca", &office.ca())]));
    let calls: Vec<_> = (0..200)
        .map(|number: usize| connection.call(&pack(&[b"ECHO", number.to_string().as_bytes()])))
        .collect();
    let mut peer = Peer::new(office.acceptor(false).accept(server.tcp().await).await.unwrap());
    let hello = peer.hello().await;
    assert_eq!(hello[2..5], ["AUTH", "u", "secret"]);
    tokio::spawn(peer.echo());
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(text(&call.await.unwrap()), number.to_string());
    }
    let large = "x".repeat(1 << 20);
    let call = connection.call(&pack(&[b"ECHO", large.as_bytes()]));
    assert_eq!(text(&call.await.unwrap()).len(), large.len());
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_ours() {
    let office = Office::open();
    let server = FakeServer::start().await;
    let (_, certificate, key) = office.sign("client");
    let certificate = office.file("client.pem", &certificate);
    let key = office.file("client.key", &key.serialize_pem());
    let options = [("ca", &*office.ca()), ("cert", &*certificate), ("key", &*key)];
    let connection = plain(&url(&server, &options));
    let call = connection.call(&pack(&[b"ECHO", b"1"]));
    let mut peer = Peer::new(office.acceptor(true).accept(server.tcp().await).await.unwrap());
    peer.hello().await;
    tokio::spawn(peer.echo());
    assert_eq!(text(&call.await.unwrap()), "1");
}

#[tokio::test]
async fn a_server_signed_by_a_stranger_never_hears_the_password() {
    let (office, stranger) = (Office::open(), Office::open());
    let server = FakeServer::start().await;
    let connection = plain(&url(&server, &[("ca", &office.ca())]));
    let call = connection.call(&pack(&[b"PING"]));
    let accepted = stranger.acceptor(false).accept(server.tcp().await).await;
    assert!(accepted.is_err(), "the client goes on with a stranger");
    let error = call.await.unwrap_err().into_error();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    assert!(error.to_string().contains("not trusted"), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
}

#[tokio::test]
async fn certificates_that_are_none_are_named_by_their_option() {
    let office = Office::open();
    let server = FakeServer::start().await;
    let ca = office.ca();
    let empty = office.file("empty", "");
    let absent = office.folder.path().join("absent");
    for (options, named) in [
        (vec![("ca", &*empty)], "ca="),
        (vec![("ca", &*absent)], "ca="),
        (vec![("ca", &*ca), ("cert", &*empty), ("key", &*empty)], "key="),
    ] {
        let connection = plain(&url(&server, &options));
        let error = connection.call(&pack(&[b"PING"])).await.unwrap_err().into_error();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test]
async fn the_systems_own_roots_are_the_default() {
    let office = Office::open();
    let server = FakeServer::start().await;
    let connection = plain(&format!("rediss://localhost:{}", server.port()));
    let call = connection.call(&pack(&[b"PING"]));
    let accepted = office.acceptor(false).accept(server.tcp().await).await;
    assert!(accepted.is_err(), "nobody's system trusts this authority");
    let error = call.await.unwrap_err().into_error();
    assert!(error.to_string().contains("not trusted"), "{error}");
}
