//! The settings of the order checker.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::levels::Levels;
use super::report::OrderReport;
use super::silence::SilencedEdges;
use crate::contract::{Error, ErrorKind, NameClasses};

/// The variable that turns the checker on where the program says nothing.
pub(crate) const MODE_VARIABLE: &str = "TENURE_ORDER";

/// What the order checker does about a lock that is acquired against the learned order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OrderMode {
    /// Nothing is learned.
    #[default]
    Off,
    /// Reports are logged, and the lock is acquired all the same.
    Warn,
    /// A lock that closes a cycle is refused with [`ErrorKind::Order`]: for tests.
    Deny,
}

impl FromStr for OrderMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "off" => Ok(Self::Off),
            "warn" => Ok(Self::Warn),
            "deny" => Ok(Self::Deny),
            other => {
                let what = format!("{other:?} is no mode of the order checker");
                Err(Error::new(ErrorKind::InvalidOption, what).with_help("use off, warn or deny"))
            }
        }
    }
}

impl OrderMode {
    /// The mode as one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Deny => "deny",
        }
    }

    /// The mode that `TENURE_ORDER` names; off if it is not set.
    pub(crate) fn from_env() -> Result<Self, Error> {
        match std::env::var_os(MODE_VARIABLE) {
            None => Ok(Self::Off),
            Some(value) => {
                let mode = value.to_string_lossy().parse::<Self>();
                mode.map_err(|error| error.within(MODE_VARIABLE))
            }
        }
    }
}

/// Called for each report.
type ReportListener = Arc<dyn Fn(&OrderReport) + Send + Sync>;

/// The settings of the order checker. Given to [`Builder::order`](crate::Builder::order).
///
/// # Examples
/// ```
/// use tenure::{LockOrder, OrderMode, Tenure};
///
/// # tenure::block_on(async {
/// let order = LockOrder::new(OrderMode::Warn).service("billing");
/// let tenure = Tenure::builder().order(order).connect("memory:").await?;
/// let account = tenure.mutex("account:1")?.lock().await?;
/// let ledger = tenure.mutex("ledger")?.lock().await?; // account:* before ledger
/// drop((account, ledger));
///
/// let ledger = tenure.mutex("ledger")?.lock().await?;
/// let account = tenure.mutex("account:2")?.lock().await?; // logged: nothing hung, but it can
/// # drop((account, ledger));
/// let report = &tenure.order().unwrap().reports()[0];
/// println!("{report}"); // both places in the code
/// # let cycle = tenure.order().unwrap().reports().into_iter().any(|r| r.edges.len() == 2);
/// # assert!(cycle);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "settings do nothing until a builder has them"]
pub struct LockOrder {
    pub(super) mode: OrderMode,
    pub(super) levels: Option<Levels>,
    pub(super) classes: NameClasses,
    pub(super) service: Option<String>,
    pub(super) build: Option<String>,
    pub(super) silenced: SilencedEdges,
    pub(super) shared: bool,
    pub(super) long_hold: Option<Duration>,
    pub(super) listener: Option<ReportListener>,
}

impl LockOrder {
    /// The checker in this mode, with classes derived from names, shared through the store.
    pub fn new(mode: OrderMode) -> Self {
        Self {
            mode,
            levels: None,
            classes: NameClasses::default(),
            service: None,
            build: None,
            silenced: SilencedEdges::default(),
            shared: true,
            long_hold: None,
            listener: None,
        }
    }

    /// The same settings in another mode.
    pub fn mode(mut self, mode: OrderMode) -> Self {
        self.mode = mode;
        self
    }

    /// The levels of locks. They are checked in every mode.
    pub fn levels(mut self, levels: Levels) -> Self {
        self.levels = Some(levels);
        self
    }

    /// Templates of classes, for names whose segments do not tell: see [`NameClasses::new`].
    pub fn classes<T: Into<String>>(mut self, templates: impl IntoIterator<Item = T>) -> Self {
        self.classes = NameClasses::new(templates);
        self
    }

    /// The service that reports name. Default: the name of the executable file.
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = Some(service.into());
        self
    }

    /// The build of the service, such as a version or a commit. Edges of a build that is no longer
    /// seen are forgotten. Default: the build id of the executable file.
    pub fn build(mut self, build: impl Into<String>) -> Self {
        self.build = Some(build.into());
        self
    }

    /// Edges that shall not be reported, each with a reason.
    pub fn silenced(mut self, silenced: SilencedEdges) -> Self {
        self.silenced = silenced;
        self
    }

    /// Keeps what is learned in this process: nothing is written to the store's cells.
    pub fn not_shared(mut self) -> Self {
        self.shared = false;
        self
    }

    /// Reports locks that are held for longer than this, once for each place in the code: when the
    /// session next renews the lock, and at the latest when the hold ends.
    pub fn long_hold(mut self, limit: Duration) -> Self {
        self.long_hold = Some(limit);
        self
    }

    /// Calls this for each report, beside the log. It runs where the lock is acquired, and for a
    /// long hold on the keeper's thread: it must be quick, and must not acquire locks.
    pub fn on_report(mut self, listener: impl Fn(&OrderReport) + Send + Sync + 'static) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// The settings of a program that says nothing: the mode is that of the environment.
    pub(crate) fn from_env() -> Result<Self, Error> {
        OrderMode::from_env().map(Self::new)
    }

    pub(crate) fn take_levels(self) -> Option<Levels> {
        self.levels
    }

    /// These settings, with levels that were set before, unless they have their own.
    pub(crate) fn or_levels(mut self, levels: Option<Levels>) -> Self {
        self.levels = self.levels.or(levels);
        self
    }

    /// Whether there is anything to check.
    pub(super) fn is_idle(&self) -> bool {
        self.mode == OrderMode::Off && self.levels.is_none() && self.long_hold.is_none()
    }
}

impl Default for LockOrder {
    fn default() -> Self {
        Self::new(OrderMode::Off)
    }
}

impl From<OrderMode> for LockOrder {
    fn from(mode: OrderMode) -> Self {
        Self::new(mode)
    }
}

impl fmt::Debug for LockOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockOrder")
            .field("mode", &self.mode)
            .field("levels", &self.levels)
            .field("service", &self.service)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

/// The service of a program that does not say: its executable file.
pub(super) fn default_service() -> String {
    let path = std::env::current_exe().ok();
    let stem = path.as_deref().and_then(std::path::Path::file_stem);
    stem.map_or_else(|| "unknown".to_owned(), |stem| stem.to_string_lossy().into_owned())
}
