//! Free loopback ports for servers that are told their port. Knows ports, not who listens.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where to look. Below the range from which the kernel takes ports for outgoing connections:
/// otherwise a stranger's connection could sit on a server's port while that server restarts.
const RANGE: std::ops::Range<u32> = 12_000..32_000;

/// A port that was free a moment ago. Somebody may take it before the server does; who starts the
/// server then asks for another one.
pub(crate) fn free() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that run at the same time begin at different places.
    let begin = std::process::id().wrapping_mul(61);
    for _ in RANGE {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = RANGE.start + begin.wrapping_add(step) % (RANGE.end - RANGE.start);
        let port = u16::try_from(port).expect("the range holds ports");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port on 127.0.0.1 in {RANGE:?}; what listens on all of them? Try `ss -ltn`");
}

#[cfg(test)]
mod tests {
    use super::free;
    use std::net::TcpListener;

    #[test]
    fn a_port_is_given_out_once_and_can_be_listened_on() {
        let (one, other) = (free(), free());
        assert_ne!(one, other);
        assert!(TcpListener::bind(("127.0.0.1", one)).is_ok());
    }
}
