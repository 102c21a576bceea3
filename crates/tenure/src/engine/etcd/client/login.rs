//! User, password, and the token that the server issues for them. A token is renewed when the
//! server rejects it. Until the new one is there, requests are sent with the old one, because a
//! request without a token gets another error. All clients of a cluster share one token, which
//! every member accepts.

use std::fmt;
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tonic::metadata::{Ascii, MetadataValue};

use super::messages::{AuthenticateRequest, AuthenticateResponse};
use super::{Client, RpcError};
use crate::sync::{Mutex, PoisonError};
use crate::time::{Clock, SystemClock};

/// The credentials of a client, and its current token.
pub struct Login {
    user: String,
    password: String,
    token: Mutex<Option<AuthToken>>,
    /// One renewal at a time.
    renewing: AsyncMutex<()>,
}

/// A token, and how long it is valid from when it was issued, if the token says so.
#[derive(Clone)]
pub(super) struct AuthToken {
    pub(super) value: MetadataValue<Ascii>,
    pub(super) life: Option<Duration>,
}

impl Login {
    /// A login with a password.
    #[must_use]
    pub fn new(user: String, password: String) -> Self {
        Self { user, password, token: Mutex::default(), renewing: AsyncMutex::new(()) }
    }

    /// The current token; the first call authenticates.
    pub(super) async fn token(&self, client: &Client) -> Result<AuthToken, RpcError> {
        match self.current() {
            Some(token) => Ok(token),
            None => self.renew(client, None).await,
        }
    }

    /// Replaces the token `stale`. If another task has replaced it already, returns that one.
    pub(super) async fn renew(
        &self,
        client: &Client,
        stale: Option<&AuthToken>,
    ) -> Result<AuthToken, RpcError> {
        let _one = self.renewing.lock().await;
        if let Some(token) = self.current()
            && stale.is_none_or(|stale| stale.value != token.value)
        {
            return Ok(token);
        }
        let (name, password) = (self.user.clone(), self.password.clone());
        let request = AuthenticateRequest { name, password };
        let path = "/etcdserverpb.Auth/Authenticate";
        let response: AuthenticateResponse = client.send(path, request, None).await?;
        let value = response.token.parse();
        let value =
            value.map_err(|_| RpcError::other("the server issued a token that is not ASCII"))?;
        let token = AuthToken { value, life: life_of(&response.token) };
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(token)
    }

    fn current(&self) -> Option<AuthToken> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

/// How long a token is valid, if it is a JSON web token with an expiry. etcd's simple tokens do not
/// say that.
fn life_of(token: &str) -> Option<Duration> {
    let payload = token.split('.').nth(1)?;
    let text = String::from_utf8(decode(payload)?).ok()?;
    let (_, rest) = text.split_once("\"exp\":")?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    let expires = Duration::from_secs(digits.parse().ok()?);
    Some(expires.saturating_sub(Duration::from_micros(SystemClock.wall_micros())))
}

/// Decodes base64 for URLs, without padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).unwrap_or(0));
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_life_of_a_web_token_is_read_and_that_of_a_simple_one_is_not_known() {
        // {"exp":99999999999,"revision":1,"username":"root"}
        let payload = "eyJleHAiOjk5OTk5OTk5OTk5LCJyZXZpc2lvbiI6MSwidXNlcm5hbWUiOiJyb290In0";
        let life = life_of(&format!("head.{payload}.signature")).unwrap();
        assert!(life > Duration::from_secs(90_000_000_000), "{life:?}");
        for simple in ["QGmHhFdVGPmSVnKk.17", "", "a.b.c", "a.!!.c"] {
            assert_eq!(life_of(simple), None, "{simple}");
        }
    }

    #[test]
    fn nothing_of_a_login_is_shown() {
        let login = Login::new("root".to_owned(), "secret".to_owned());
        assert!(!format!("{login:?}").contains("secret"));
        let name = "root".to_owned();
        let request = AuthenticateRequest { name, password: "secret".to_owned() };
        assert!(!format!("{request:?}").contains("secret"));
    }
}
