//! The election of a leader: a mutex whose holder publishes a value. A name and options;
//! `request.rs` acquires it, `term.rs` is what a leader holds, `observer.rs` what others see.
//!
//! Slot and cell have a reserved name, so that an election and a lock of one name never meet. Each
//! campaign has an owner of its own and never re-enters: a leader is one flow of control.

use std::future::Future;
use std::time::Duration;

use super::guard::{LockStatus, MutexGuard};
use super::observer::{Leader, Observer, ask_leader, read_slot};
use super::options::{Options, option_methods};
use super::request::Request;
use super::run::until_lost;
use super::term::{LeaderGuard, Term, no_values};
use super::term_record::check_value;
use crate::contract::{Error, ErrorKind, Loss, Name, Part, Parts, WaiterView};
use crate::session::{Core, Session, block_on, sleep_until};

/// The kind of reserved names that elections have.
const KIND: &str = "election";

/// The election of one leader among processes, each of which may be a candidate or an observer.
/// Made by [`Tenure::election`](crate::Tenure::election).
///
/// Candidates wait in a fair queue. The number of a term is a fence: it grows from one leader to
/// the next. By the store's clock there are never two leaders, and a leader hears of the loss
/// before the next one is elected. Cheap to clone.
///
/// # Examples
/// ```
/// use tenure::{Observed, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure.election("scheduler")?;
/// let mut observer = election.observe().await?;
/// assert_eq!(observer.next().await?, Observed::Vacant);
///
/// let leader = election.campaign("10.0.0.7:4100").await?;
/// let Observed::Leader(seen) = observer.next().await? else { panic!() };
/// assert_eq!((seen.term, &*seen.value), (leader.term()?, &b"10.0.0.7:4100"[..]));
///
/// leader.resign().await?;
/// assert_eq!(observer.next().await?, Observed::Vacant);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until there is a candidate or an observer"]
pub struct Election {
    session: Session,
    name: Name,
    /// The name of its slot and of its cell.
    slot: Name,
    options: Options,
}

impl Election {
    pub(super) fn new(session: Session, name: Name, options: Options) -> Result<Self, Error> {
        let slot = Name::reserved(KIND, &name)?;
        Ok(Self { session, name, slot, options })
    }

    option_methods!(without_owner);

    /// The election's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The reserved name under which [`Tenure::inspect`](crate::Tenure::inspect) shows the leader
    /// and the candidates.
    #[must_use]
    pub fn slot(&self) -> &Name {
        &self.slot
    }

    fn core(&self) -> &Core {
        self.session.core()
    }

    /// Waits until this candidate is elected, and publishes `value` for observers. The value is
    /// published before the guard is returned; if the leadership is lost before that, the candidate
    /// waits again.
    ///
    /// # Fairness
    /// First come, first served, across processes, where the engine promises a queue.
    ///
    /// # Errors
    /// `TimedOut` if the timeout expires: the error names the leader and the place in the queue.
    /// `InvalidOption` if the value is too large (256 KiB less a few bytes). `Unsupported` if the
    /// engine has no cells and the value is not empty: leaders are elected there, but publish
    /// nothing. `Unavailable` if the store cannot be reached until the timeout expires or, without
    /// a timeout, for one `max_lease`.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue; a leadership that was won meanwhile is
    /// given up in the background.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let election = tenure.election("scheduler")?.lease(Duration::from_secs(10)).label("node 7");
    /// let leader = election.campaign("10.0.0.7:4100").await?;
    /// let term = leader.term()?; // hand it to what the leader writes to
    /// leader.resign().await?;
    /// assert!(election.campaign("").await?.term()? > term);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn campaign<V: Into<Vec<u8>>>(
        &self,
        value: V,
    ) -> impl Future<Output = Result<LeaderGuard, Error>> + Send + use<V> {
        run_campaign(self.clone(), self.request(), value.into())
    }

    /// Blocks the thread until this candidate is elected: the blocking form of
    /// [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    #[track_caller]
    pub fn blocking_campaign(&self, value: impl Into<Vec<u8>>) -> Result<LeaderGuard, Error> {
        block_on(self.campaign(value))
    }

    /// Waits to be elected, runs work as the leader, resigns, and returns what the work returned.
    /// If the leadership is lost, the work is dropped, and after a pause the candidate campaigns
    /// again; also if the store is away.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign), except that a store which is away is no error while the
    /// election has no timeout; `Lost` if the leadership turns out to be lost after the work was
    /// done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and resigns in the background.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let election = tenure.election("scheduler")?;
    /// let work = |term: tenure::Term| async move {
    ///     term.publish("ready").await?;
    ///     term.term()
    /// };
    /// let term = election.run_as_leader("starting", work).await??;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn run_as_leader<V, W, F, T>(
        &self,
        value: V,
        mut work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<V, W, F, T>
    where
        V: Into<Vec<u8>>,
        W: FnMut(Term) -> F + Send,
        F: Future<Output = T> + Send,
        T: Send,
    {
        let (election, request, value) = (self.clone(), self.request(), value.into());
        async move {
            let mut retry = CampaignRetry::new(&election);
            loop {
                let campaign = run_campaign(election.clone(), request.clone(), value.clone());
                let leader = match campaign.await {
                    Ok(leader) => leader,
                    Err(error) => {
                        retry.campaign_failed(error).await?;
                        continue;
                    }
                };
                retry.elected();
                let (term, status) = (Term::clone(&leader), LockStatus::clone(&leader));
                match until_lost(&status, work(term)).await {
                    Ok(output) => return resign_after(leader, output).await,
                    Err(error) => retry.lost(error).await?,
                }
            }
        }
    }

    /// Waits to be elected, calls a closure as the leader, resigns, and returns what it returned.
    /// The blocking form of [`run_as_leader`](Self::run_as_leader). A closure cannot be stopped
    /// from outside: one that takes long asks [`LockStatus::check`](crate::LockStatus::check) now
    /// and then. If the leadership was lost meanwhile, it is called again after the next election.
    ///
    /// # Errors
    /// As [`run_as_leader`](Self::run_as_leader).
    #[track_caller]
    pub fn blocking_run_as_leader<T>(
        &self,
        value: impl Into<Vec<u8>>,
        mut work: impl FnMut(Term) -> T,
    ) -> Result<T, Error> {
        let (request, value) = (self.request(), value.into());
        let mut retry = CampaignRetry::new(self);
        loop {
            let campaign = run_campaign(self.clone(), request.clone(), value.clone());
            let leader = match block_on(campaign) {
                Ok(leader) => leader,
                Err(error) => {
                    block_on(retry.campaign_failed(error))?;
                    continue;
                }
            };
            retry.elected();
            let output = work(Term::clone(&leader));
            match leader.check() {
                Ok(()) => return block_on(resign_after(leader, output)),
                Err(error) => block_on(retry.lost(error))?,
            }
        }
    }

    /// Asks once who leads. `None` if there is no leader, or none that has published its value yet.
    /// Out of date when it returns: to follow the leader, see [`observe`](Self::observe).
    ///
    /// Where the engine has no cells, the value is empty.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached, `Closed` after
    /// [`Tenure::close`](crate::Tenure::close).
    ///
    /// # Cancel safety
    /// Asking changes nothing.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let election = tenure.election("scheduler")?;
    /// assert!(election.leader().await?.is_none());
    /// let leader = election.campaign("10.0.0.7:4100").await?;
    /// let seen = election.leader().await?.expect("there is a leader");
    /// println!("{seen}: {}", String::from_utf8_lossy(&seen.value));
    /// # leader.resign().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        ask_leader(self.core(), &self.slot).await
    }

    /// The blocking form of [`leader`](Self::leader): see there for an example.
    ///
    /// # Errors
    /// As [`leader`](Self::leader).
    pub fn blocking_leader(&self) -> Result<Option<Leader>, Error> {
        block_on(self.leader())
    }

    /// Observes the election: leaders, their terms and values, and that there is none. Pushed by
    /// the store when a leader wins, publishes or resigns; one that ends without a word is noticed
    /// within its lease. See [`Election`] for an example.
    ///
    /// # Errors
    /// `Unsupported` if the engine has no cells; otherwise as [`leader`](Self::leader).
    ///
    /// # Cancel safety
    /// Dropping the future ends the observation.
    pub async fn observe(&self) -> Result<Observer, Error> {
        Observer::begin(self.session.clone(), self.slot.clone()).await
    }

    /// The blocking form of [`observe`](Self::observe).
    ///
    /// # Errors
    /// As [`observe`](Self::observe).
    pub fn blocking_observe(&self) -> Result<Observer, Error> {
        block_on(self.observe())
    }

    /// The candidates that wait, next first. Where the engine promises no queue, those that it
    /// knows of.
    ///
    /// # Errors
    /// As [`leader`](Self::leader).
    ///
    /// # Cancel safety
    /// Inspecting changes nothing.
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let election = tenure.election("scheduler")?;
    /// let leader = election.campaign("").await?;
    /// for candidate in election.candidates().await? {
    ///     println!("{} has waited for {:?}", candidate.about, candidate.waited_for);
    /// }
    /// # leader.resign().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn candidates(&self) -> Result<Vec<WaiterView>, Error> {
        let slot = read_slot(self.core(), &self.slot).await?;
        Ok(slot.map(|slot| slot.queue).unwrap_or_default())
    }

    /// The blocking form of [`candidates`](Self::candidates): see there for an example.
    ///
    /// # Errors
    /// As [`candidates`](Self::candidates).
    pub fn blocking_candidates(&self) -> Result<Vec<WaiterView>, Error> {
        block_on(self.candidates())
    }

    #[track_caller]
    fn request(&self) -> Request {
        let parts = Ok(Parts::one(Part::write(self.slot.clone())));
        Request::new(&self.session, &self.options, parts, None)
    }
}

/// Claims the slot and publishes the value. A leadership that was lost before its value was
/// published is not reported: the candidate claims again, at the end of the queue.
async fn run_campaign(
    election: Election,
    request: Request,
    value: Vec<u8>,
) -> Result<LeaderGuard, Error> {
    check_value(&value, &election.slot)?;
    if !value.is_empty() && !election.core().engine().promises().cells {
        return Err(no_values(election.core()).on(&election.slot));
    }
    let deadline = request.deadline();
    loop {
        let request = request.clone().for_new_owner().until(deadline);
        let held: MutexGuard = request.wait().await?;
        match LeaderGuard::win(held, &election.slot, value.clone(), deadline).await {
            Err(error) if may_campaign_again(&error) => {}
            won => return won,
        }
    }
}

/// Whether a candidate that lost may be elected once more: its session lives.
fn may_campaign_again(lost: &Error) -> bool {
    matches!(lost.loss(), Some(Loss::Expired | Loss::Forgotten | Loss::Evicted { .. }))
}

async fn resign_after<T>(leader: LeaderGuard, output: T) -> Result<T, Error> {
    match leader.resign().await {
        // The work is done; the leadership ends in the background.
        Err(error) if error.kind() != ErrorKind::Lost => Ok(output),
        resigned => resigned.map(|()| output),
    }
}

/// Pauses between campaigns, which grow while terms are short.
struct CampaignRetry<'a> {
    election: &'a Election,
    failures: u32,
    since: crate::time::Tick,
}

impl<'a> CampaignRetry<'a> {
    fn new(election: &'a Election) -> Self {
        Self { election, failures: 0, since: election.core().now() }
    }

    fn elected(&mut self) {
        self.since = self.election.core().now();
    }

    /// Pauses if the store was away; any other error ends the campaigns.
    async fn campaign_failed(&mut self, error: Error) -> Result<(), Error> {
        if error.kind() != ErrorKind::Unavailable || self.election.options.has_timeout() {
            return Err(error);
        }
        self.pause().await;
        Ok(())
    }

    /// Pauses after a loss, unless the session has ended.
    async fn lost(&mut self, error: Error) -> Result<(), Error> {
        if !may_campaign_again(&error) && error.loss() != Some(&Loss::MaxHold) {
            return Err(error);
        }
        if self.election.core().now().since(self.since) >= PROVEN {
            self.failures = 0;
        }
        self.pause().await;
        Ok(())
    }

    async fn pause(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let core = self.election.core();
        sleep_until(core, core.now() + core.pause(self.failures)).await;
    }
}

/// After a term of this length the pauses begin short again.
const PROVEN: Duration = Duration::from_secs(10);
