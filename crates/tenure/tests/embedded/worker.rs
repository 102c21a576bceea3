//! The other processes of a test: each obeys orders from its input, one a line, and answers with a
//! line. Knows the library as its users do.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::block_on;
use tenure::contract::Claim;
use tenure::engine::embedded::{EmbeddedEngine, Location};

use tenure::time::Tick;
use tenure::{Error, Event, Fence, Mutex, MutexGuard, Put, PutVerdict, Tenure, Witness};

use crate::cells;
use crate::forking;
use crate::host::terms;
use crate::space;
use crate::traffic::Traffic;

/// Says a line to the test.
pub(crate) fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "@ {line}").unwrap();
    output.flush().unwrap();
}

/// Obeys until the input ends.
pub(crate) fn serve() {
    let mut worker = Worker::default();
    // The harness has begun a line of its own.
    println!();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        if let Err(error) = worker.obey(&words) {
            say(&format!("error {:?}: {error}", error.kind()));
        }
    }
    worker.leave();
}

/// One process with at most one session.
#[derive(Default)]
pub(crate) struct Worker {
    pub(crate) session: Option<(Tenure, Arc<EmbeddedEngine>)>,
    pub(crate) guards: HashMap<String, MutexGuard>,
    line: Arc<Line>,
    traffic: Option<Traffic>,
}

/// Tells when claims stand in line.
#[derive(Debug, Default)]
struct Line {
    seen: AtomicUsize,
    /// Tells only when so many stand there.
    wanted: AtomicUsize,
}

impl Witness for Line {
    fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, event: &Event) {
        if let Event::Queued { .. } = event {
            let seen = self.seen.fetch_add(1, Ordering::SeqCst) + 1;
            let wanted = self.wanted.load(Ordering::SeqCst);
            if wanted == 0 || seen == wanted {
                say("queued");
            }
        }
    }
}

impl Worker {
    fn obey(&mut self, words: &[&str]) -> Result<(), Error> {
        match *words {
            ["connect", path, ref options @ ..] => self.connect(path, options)?,
            ["lock", name, ref options @ ..] => {
                let guard = block_on(self.mutex(name, options)?.lock())?;
                self.keep(name, guard)?;
            }
            ["try", name] => match block_on(self.mutex(name, &[])?.try_lock())? {
                Some(guard) => self.keep(name, guard)?,
                None => say("busy"),
            },
            ["release", name] => {
                let guard = self.guards.remove(name).expect("it holds that");
                block_on(guard.release())?;
                say("released");
            }
            ["fence", name] => say(&format!("fence {}", self.guards[name].fence()?)),
            ["check", name] => {
                self.guards[name].check()?;
                say("fine");
            }
            ["lost", name] => {
                let loss = block_on(self.guards[name].lost());
                say(&format!("lost {loss}"));
            }
            ["evict", name, fence, reason] => {
                let fence = Fence::new(fence.parse().unwrap());
                let evicted = block_on(self.tenure().force_release(name, fence, reason))?;
                say(&format!("evicted {evicted:?}"));
            }
            ["put", name, value] => {
                let put = Put::new(name.parse().unwrap(), value);
                let verdict = block_on(self.tenure().cells().put(&put))?;
                say(if matches!(verdict, PutVerdict::Done(_)) { "put" } else { "not put" });
            }
            ["get", name] => {
                let cell = block_on(self.tenure().cells().get(&name.parse().unwrap()))?;
                let value = cell.map(|cell| String::from_utf8(cell.value).unwrap());
                say(&format!("cell {}", value.unwrap_or_default()));
            }
            ["stop-inside"] => {
                self.engine().stop_inside()?;
                say("went on");
            }
            ["stop-in-read"] => {
                self.engine().stop_in_read()?;
                say("went on");
            }
            ["leave"] => {
                self.leave();
                say("left");
            }
            ["create" | "increment" | "put-many" | "put-sizes" | "die-in-commit" | "watch", ..] => {
                cells::obey(self, words)?;
            }
            ref more => self.obey_more(more),
        }
        Ok(())
    }

    /// Orders with rooms of their own.
    fn obey_more(&mut self, words: &[&str]) {
        match *words {
            ["crowd", name, tasks] => self.crowd(name, tasks.parse().unwrap()),
            ["many-take", count] => {
                let tenure = self.tenure().clone();
                for name in names(count) {
                    let guard = block_on(tenure.mutex(&name).unwrap().lock()).unwrap();
                    self.guards.insert(name, guard);
                }
                say("taken");
            }
            ["many-wait", count] => self.wait_for_many(count),
            ["many-release"] => {
                for (_, guard) in self.guards.drain() {
                    block_on(guard.release()).unwrap();
                }
                say("released");
            }
            ["traffic", scratch, path, shape, seed] => {
                let seed = seed.parse().unwrap();
                self.traffic = Some(Traffic::start(Path::new(scratch), path, shape, seed));
                say("started");
            }
            ["rounds", count] => {
                self.traffic.as_ref().expect("traffic").advance(count.parse().unwrap());
                say("advanced");
            }
            ["enough"] => {
                let rounds = self.traffic.take().expect("traffic").finish();
                say(&format!("done {rounds}"));
            }
            ["fork", "beget"] => forking::beget(),
            ["fork", "exec"] => forking::exec(),
            ["fork", "meddle", name] => forking::meddle(self, name),
            ["limit", bytes] => space::limit_files(bytes.parse().unwrap()),
            ["fill", kind, most] => space::fill(self, kind, most.parse().unwrap()),
            ["drain"] => space::drain(self),
            _ => panic!("what is {words:?}?"),
        }
    }

    fn connect(&mut self, path: &str, options: &[&str]) -> Result<(), Error> {
        let (mut terms, mut location) = (terms(), Location::at(path));
        let mut builder = Tenure::builder().witness(Arc::clone(&self.line) as _);
        for option in options {
            let (key, value) = option.split_once('=').unwrap();
            match key {
                "lease" => builder = builder.lease(millis(value)),
                "max_lease" => terms.max_lease = millis(value),
                "boot" => location = location.boot(value),
                _ => panic!("what is {option}?"),
            }
        }
        let engine = Arc::new(EmbeddedEngine::open(&location, terms.clone())?);
        let tenure = builder.max_lease(terms.max_lease).open(Arc::clone(&engine) as _)?;
        self.session = Some((tenure, engine));
        say("connected");
        Ok(())
    }

    pub(crate) fn tenure(&self) -> &Tenure {
        &self.session.as_ref().expect("connected").0
    }

    pub(crate) fn engine(&self) -> &EmbeddedEngine {
        &self.session.as_ref().expect("connected").1
    }

    fn mutex(&self, name: &str, options: &[&str]) -> Result<Mutex, Error> {
        let mut mutex = self.tenure().mutex(name)?;
        for option in options {
            let (key, value) = option.split_once('=').unwrap();
            mutex = match key {
                "delay" => mutex.lock_delay(millis(value)),
                _ => panic!("what is {option}?"),
            };
        }
        Ok(mutex)
    }

    fn keep(&mut self, name: &str, guard: MutexGuard) -> Result<(), Error> {
        say(&format!("held {}", guard.fence()?));
        self.guards.insert(name.to_owned(), guard);
        Ok(())
    }

    /// A task for each of many locks, until all of them are held.
    fn wait_for_many(&self, count: &str) {
        self.line.wanted.store(count.parse().unwrap(), Ordering::SeqCst);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tenure = self.tenure();
        let guards = runtime.block_on(async {
            let take = |name: String| {
                let mutex = tenure.mutex(&name).unwrap();
                tokio::spawn(async move { mutex.lock().await.unwrap() })
            };
            let tasks: Vec<_> = names(count).map(take).collect();
            let mut guards = Vec::new();
            for task in tasks {
                guards.push(task.await.unwrap());
            }
            guards
        });
        say("all held");
        drop(guards);
    }

    /// Many tasks that want one lock.
    fn crowd(&self, name: &str, tasks: usize) {
        self.line.wanted.store(tasks, Ordering::SeqCst);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mutex = self.tenure().mutex(name).unwrap();
        let served = runtime.block_on(async {
            let take = async |mutex: Mutex| mutex.lock().await?.release().await;
            let all: Vec<_> = (0..tasks).map(|_| tokio::spawn(take(mutex.clone()))).collect();
            let mut served = 0;
            for task in all {
                task.await.unwrap().unwrap();
                served += 1;
            }
            served
        });
        say(&format!("served {served}"));
    }

    fn leave(&mut self) {
        self.guards.clear();
        if let Some((tenure, _engine)) = self.session.take() {
            block_on(tenure.close());
        }
    }
}

fn names(count: &str) -> impl Iterator<Item = String> + use<> {
    (0..count.parse::<usize>().unwrap()).map(|number| format!("many-{number}"))
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}
