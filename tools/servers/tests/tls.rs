//! The TLS port of a Redis, spoken to by a client that believes its authority and no other.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use servers::{Certificates, Redis};

/// Says PING over TLS and returns the answer.
fn ping(
    redis: &Redis,
    name: &str,
    ca: &Path,
    client: Option<&Certificates>,
) -> Result<String, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some(files) => {
            let cert = CertificateDer::from_pem_file(files.client_cert()).unwrap();
            let key = PrivateKeyDer::from_pem_file(files.client_key()).unwrap();
            config.with_client_auth_cert(vec![cert], key).unwrap()
        }
    };
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", redis.tls_port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(b"PING\r\n").map_err(|error| text(&error))?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).map_err(|error| text(&error))?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn the_tls_port_answers_who_trusts_its_authority() {
    let redis = Redis::builder().tls().start();
    let ca = redis.certificates().ca();
    for name in ["localhost", "127.0.0.1"] {
        assert_eq!(ping(&redis, name, &ca, None).as_deref(), Ok("+PONG\r\n"));
    }
    assert_eq!(redis.tls_url(), format!("rediss://localhost:{}", redis.tls_port()));
    // The plain port stays.
    assert!(redis.connect().unwrap().cmd(&["PING"]).is_ok());
    redis.restart();
    assert_eq!(ping(&redis, "localhost", &ca, None).as_deref(), Ok("+PONG\r\n"));
}

#[test]
fn another_authority_or_another_name_is_not_believed() {
    let redis = Redis::builder().tls().start();
    let other = Redis::builder().tls().start();
    let error = ping(&redis, "localhost", &other.certificates().ca(), None).unwrap_err();
    assert!(error.contains("certificate"), "{error}");
    let error = ping(&redis, "example.org", &redis.certificates().ca(), None).unwrap_err();
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn a_server_can_insist_on_certificates_of_its_clients() {
    let redis = Redis::builder().tls().arg("tls-auth-clients", "yes").start();
    let files = redis.certificates();
    assert!(ping(&redis, "localhost", &files.ca(), None).is_err());
    assert_eq!(ping(&redis, "localhost", &files.ca(), Some(files)).as_deref(), Ok("+PONG\r\n"));
    let stranger = Redis::builder().tls().start();
    assert!(ping(&redis, "localhost", &files.ca(), Some(stranger.certificates())).is_err());
}
