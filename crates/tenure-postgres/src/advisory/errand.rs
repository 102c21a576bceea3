//! A call that is made to its end, though its caller leaves. Knows futures, not locks.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Awaits a call. If it is dropped on the way, the call goes on by itself, and what it comes to is
/// dropped when it does: a guard is given back.
pub(super) struct Errand<T: Send + 'static> {
    /// None once it is done.
    call: Option<Boxed<T>>,
    begun: bool,
    home: Handle,
}

impl<T: Send + 'static> Errand<T> {
    /// Nothing happens before it is polled.
    pub(super) fn new(home: Handle, call: impl Future<Output = T> + Send + 'static) -> Self {
        Self { call: Some(Box::pin(call)), begun: false, home }
    }
}

impl<T: Send + 'static> Future for Errand<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let Some(call) = &mut self.call else { return Poll::Pending };
        let done = call.as_mut().poll(cx);
        if done.is_ready() {
            self.call = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for Errand<T> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take().filter(|_| self.begun) {
            // If that runtime is gone, so are its connections, and the server has freed their
            // locks.
            self.home.spawn(async move { drop(call.await) });
        }
    }
}

/// Which of two futures ends first; the first one, if both have.
pub(super) enum First<A, B> {
    One(A),
    Other(B),
}

/// Awaits two futures until one ends. The other is dropped.
pub(super) async fn first<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> First<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| {
        if let Poll::Ready(one) = one.as_mut().poll(cx) {
            return Poll::Ready(First::One(one));
        }
        other.as_mut().poll(cx).map(First::Other)
    })
    .await
}
