//! Programs of verbs: made from a seed, printed, and read back. Knows text, not engines.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::contract::{Promises, samples};

/// One verb. Claims, owners, sessions and names are numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramStep {
    /// Claims for the first time.
    Claim {
        /// The number of the claim.
        claim: usize,
        /// Its session.
        session: usize,
        /// Its owner.
        owner: usize,
        /// Names with what is asked for there.
        parts: Vec<(usize, AskedShape)>,
        /// Whether it waits.
        wait: bool,
        /// Its lease, in hundredths of the stage's.
        lease: u32,
        /// Its lock delay, in hundredths of the stage's lease.
        delay: u32,
        /// The claim it replaces.
        replaces: Option<usize>,
    },
    /// Sends a claim once more.
    Repeat(usize),
    /// Renews claims in one call: those that have the session of the first.
    Renew {
        /// The claims.
        claims: Vec<usize>,
        /// For how long, in hundredths of the stage's lease, if not for their own lease.
        lease: Option<u32>,
    },
    /// Releases a claim.
    Release(usize),
    /// Withdraws a claim of which a copy may still arrive.
    Withdraw(usize),
    /// Releases by force what a claim holds on a name.
    Evict {
        /// The claim.
        claim: usize,
        /// The name.
        name: usize,
    },
    /// Ends a session.
    End(usize),
    /// Raises fences so far above all so far; 0 is refused.
    Raise(u64),
    /// Lets time pass, in hundredths of the stage's lease.
    Pass(u32),
}

/// What is asked for on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedShape {
    /// A reader's share.
    Read,
    /// A writer's whole.
    Write,
    /// So many permits of a semaphore of three.
    Permits(u32),
}

/// The permits of every semaphore in a program.
pub(super) const PERMITS: u32 = 3;
/// How many names a program plays with.
pub(super) const NAMES: usize = 3;
/// How many sessions.
pub(super) const SESSIONS: usize = 3;
/// The parent of each owner, by number; all numbers are owners.
pub(super) const PARENTS: [Option<usize>; 5] = [None, None, None, Some(0), Some(3)];

/// A program of verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(pub(super) Vec<ProgramStep>);

impl Program {
    /// The steps.
    #[must_use]
    pub fn steps(&self) -> &[ProgramStep] {
        &self.0
    }

    /// The program of a seed: the same for ever.
    #[must_use]
    pub fn from_seed(seed: u64, steps: usize, promises: &Promises) -> Self {
        let mut maker = Maker { dice: Dice(seed), claims: 0, promises };
        // Most programs use each name with one shape; the rest shows that two shapes are refused.
        let shapes: Vec<u64> = (0..NAMES).map(|_| maker.dice.roll(3)).collect();
        Self((0..steps).map(|_| maker.step(&shapes)).collect())
    }
}

struct Maker<'a> {
    dice: Dice,
    claims: usize,
    promises: &'a Promises,
}

impl Maker<'_> {
    fn step(&mut self, shapes: &[u64]) -> ProgramStep {
        let roll = self.dice.roll(100);
        if self.claims == 0 || roll < 40 {
            return self.claim(shapes);
        }
        let claim = self.dice.below(self.claims);
        match roll {
            40..=47 => ProgramStep::Repeat(claim),
            48..=60 => self.renew(claim),
            61..=78 => ProgramStep::Release(claim),
            79..=83 => ProgramStep::Withdraw(claim),
            84..=86 => ProgramStep::Evict { claim, name: self.dice.below(NAMES) },
            87..=88 => ProgramStep::End(self.dice.below(SESSIONS)),
            89 if self.promises.fence_floor => {
                ProgramStep::Raise(self.dice.roll(3) * 1_000_000_000)
            }
            _ => ProgramStep::Pass([10, 30, 30, 60, 110][self.dice.below(5)]),
        }
    }

    fn renew(&mut self, first: usize) -> ProgramStep {
        let mut claims = vec![first];
        if self.dice.roll(3) == 0 {
            claims.extend((0..3).map(|_| self.dice.below(self.claims)));
            let mut seen = HashSet::new();
            claims.retain(|claim| seen.insert(*claim));
        }
        let lease = (self.dice.roll(4) == 0).then(|| [20, 50, 100][self.dice.below(3)]);
        ProgramStep::Renew { claims, lease }
    }

    fn claim(&mut self, shapes: &[u64]) -> ProgramStep {
        let claim = self.claims;
        self.claims += 1;
        let first = self.dice.below(NAMES);
        let mut parts = vec![(first, self.kind(shapes[first]))];
        if self.promises.atomic_sets && self.dice.roll(4) == 0 {
            let second = (first + 1 + self.dice.below(NAMES - 1)) % NAMES;
            parts.push((second, self.kind(shapes[second])));
        }
        let replaces = (claim > 0 && parts.len() == 1 && self.dice.roll(8) == 0)
            .then(|| self.dice.below(claim));
        ProgramStep::Claim {
            claim,
            session: self.dice.below(SESSIONS),
            owner: self.dice.below(PARENTS.len()),
            parts,
            wait: !self.promises.queue || self.dice.roll(4) > 0,
            lease: [100, 100, 60, 30][self.dice.below(4)],
            delay: if self.dice.roll(6) == 0 { 40 } else { 0 },
            replaces,
        }
    }

    fn kind(&mut self, shape: u64) -> AskedShape {
        let odd = self.dice.roll(16) == 0;
        let shape = if odd { self.dice.roll(3) } else { shape };
        match shape {
            1 if self.promises.sharing => {
                if self.dice.roll(3) == 0 {
                    AskedShape::Write
                } else {
                    AskedShape::Read
                }
            }
            2 if self.promises.counting => AskedShape::Permits(
                1 + u32::try_from(self.dice.below(PERMITS as usize)).unwrap_or(0),
            ),
            _ => AskedShape::Write,
        }
    }
}

/// Numbers from a seed (`SplitMix64`).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        samples::random(&mut self.0) % sides
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.roll(limit as u64)).unwrap_or(0)
    }
}

impl fmt::Display for AskedShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("read"),
            Self::Write => f.write_str("write"),
            Self::Permits(permits) => write!(f, "permits{permits}"),
        }
    }
}

impl fmt::Display for ProgramStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { claim, session, owner, parts, wait, lease, delay, replaces } => {
                write!(f, "claim c{claim} s{session} o{owner} ")?;
                let parts: Vec<_> = parts.iter().map(|(n, kind)| format!("n{n}:{kind}")).collect();
                let patience = if *wait { "wait" } else { "try" };
                write!(f, "{} {patience} lease{lease} delay{delay}", parts.join("+"))?;
                replaces.map_or(Ok(()), |old| write!(f, " replaces c{old}"))
            }
            Self::Repeat(claim) => write!(f, "repeat c{claim}"),
            Self::Renew { claims, lease } => {
                f.write_str("renew")?;
                claims.iter().try_for_each(|claim| write!(f, " c{claim}"))?;
                lease.map_or(Ok(()), |lease| write!(f, " lease{lease}"))
            }
            Self::Release(claim) => write!(f, "release c{claim}"),
            Self::Withdraw(claim) => write!(f, "withdraw c{claim}"),
            Self::Evict { claim, name } => write!(f, "evict c{claim} n{name}"),
            Self::End(session) => write!(f, "end s{session}"),
            Self::Raise(by) => write!(f, "raise {by}"),
            Self::Pass(time) => write!(f, "pass {time}"),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl FromStr for Program {
    type Err = String;

    /// Reads what `Display` wrote. Empty lines and lines that begin with `#` are passed over.
    fn from_str(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let steps = lines.map(|line| step(line).ok_or_else(|| format!("not a step: {line:?}")));
        steps.collect::<Result<Vec<_>, _>>().map(Self)
    }
}

fn step(line: &str) -> Option<ProgramStep> {
    let words: Vec<&str> = line.split_whitespace().collect();
    Some(match *words.as_slice() {
        ["claim", claim, session, owner, parts, patience, lease, delay, ref rest @ ..] => {
            let replaces = match *rest {
                [] => None,
                ["replaces", old] => Some(number("c", old)?),
                _ => return None,
            };
            let owner = number("o", owner).filter(|owner| *owner < PARENTS.len())?;
            ProgramStep::Claim {
                claim: number("c", claim)?,
                session: number("s", session).filter(|session| *session < SESSIONS)?,
                owner,
                parts: parts.split('+').map(part).collect::<Option<Vec<_>>>()?,
                wait: patience == "wait",
                lease: number("lease", lease)?,
                delay: number("delay", delay)?,
                replaces,
            }
        }
        ["repeat", claim] => ProgramStep::Repeat(number("c", claim)?),
        ["renew", ref claims @ .., lease] if lease.starts_with("lease") && !claims.is_empty() => {
            ProgramStep::Renew { claims: numbers(claims)?, lease: Some(number("lease", lease)?) }
        }
        ["renew", _, ..] => ProgramStep::Renew { claims: numbers(&words[1..])?, lease: None },
        ["release", claim] => ProgramStep::Release(number("c", claim)?),
        ["withdraw", claim] => ProgramStep::Withdraw(number("c", claim)?),
        ["evict", claim, name] => {
            ProgramStep::Evict { claim: number("c", claim)?, name: number("n", name)? }
        }
        ["end", session] => ProgramStep::End(number("s", session).filter(|s| *s < SESSIONS)?),
        ["raise", by] => ProgramStep::Raise(by.parse().ok()?),
        ["pass", time] => ProgramStep::Pass(time.parse().ok()?),
        _ => return None,
    })
}

fn part(text: &str) -> Option<(usize, AskedShape)> {
    let (name, kind) = text.split_once(':')?;
    let kind = match kind {
        "read" => AskedShape::Read,
        "write" => AskedShape::Write,
        permits => AskedShape::Permits(number("permits", permits)?),
    };
    Some((number("n", name).filter(|name| *name < NAMES)?, kind))
}

/// The numbers of claims.
fn numbers(words: &[&str]) -> Option<Vec<usize>> {
    words.iter().map(|word| number("c", word)).collect()
}

fn number<T: FromStr>(prefix: &str, word: &str) -> Option<T> {
    word.strip_prefix(prefix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::PROMISES;

    #[test]
    fn programs_survive_text_and_are_the_same_for_a_seed() {
        for seed in 0..50 {
            let program = Program::from_seed(seed, 40, &PROMISES);
            assert_eq!(program, Program::from_seed(seed, 40, &PROMISES));
            assert_eq!(program.to_string().parse::<Program>().unwrap(), program);
        }
    }

    #[test]
    fn text_that_is_no_program_is_refused() {
        for text in
            ["dance c0", "claim c0", "end s9", "pass soon", "renew 0", "renew", "renew lease5"]
        {
            assert!(text.parse::<Program>().is_err(), "{text}");
        }
        assert!("# a comment\n\npass 10".parse::<Program>().is_ok());
    }
}
