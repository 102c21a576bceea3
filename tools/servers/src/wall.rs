//! The wall clock of a program that asks the kernel itself, as those written in Go do. Knows the
//! page of code that the kernel gives to every process (the vDSO), no server.
//!
//! Such a program notices nothing of a library that is loaded before libc. But it asks through a
//! function of that page, and each process may have a copy of its own: there the function is made
//! to ask the kernel and to add what it was told. Clocks that never step stay as they are.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::patience::{LIMIT, within};

/// What is called, and what is overwritten because nothing written in Go calls it.
const CALLED: &str = "__vdso_clock_gettime";
const ROOM: &str = "__vdso_gettimeofday";

/// `clock_gettime` by a system call; of the wall clock (its number is 0), the seconds that stand 24
/// bytes after the beginning are added.
const CODE: [u8; 22] = [
    0xb8, 228, 0, 0, 0, // mov eax, 228
    0x0f, 0x05, // syscall
    0x85, 0xff, // test edi, edi
    0x75, 10, // jnz to the end
    0x48, 0x8b, 0x0d, 6, 0, 0, 0, // mov rcx, [rip + 6]
    0x48, 0x01, 0x0e, // add [rsi], rcx
    0xc3, // ret
];
const SECONDS_AT: u64 = 24;

/// The wall clock of one process.
#[derive(Debug)]
pub(crate) struct Wall {
    memory: File,
    seconds: u64,
}

impl Wall {
    /// Takes over the wall clock of a process that is stopped. Its threads must not be inside the
    /// function: [`is_elsewhere`] says whether they are.
    pub(crate) fn take_over(pid: u32) -> Result<Self, String> {
        let page = Page::of(pid)?;
        let (called, room) = (page.address(CALLED)?, page.address(ROOM)?);
        // Both are in one page or the next: a jump of 32 bits is far more than enough.
        let jump = i64::try_from(room.0).ok().zip(i64::try_from(called.0 + 5).ok());
        let jump = jump.and_then(|(to, from)| i32::try_from(to - from).ok());
        let [a, b, c, d] = jump.ok_or("the page is larger than it can be")?.to_le_bytes();
        let wall = Self { memory: page.memory, seconds: room.0 + SECONDS_AT };
        wall.write(&CODE, room.0)?;
        wall.add(0)?;
        wall.write(&[0xe9, a, b, c, d], called.0)?;
        Ok(wall)
    }

    /// So many seconds are added to the true time.
    pub(crate) fn add(&self, seconds: i64) -> Result<(), String> {
        self.write(&seconds.to_le_bytes(), self.seconds)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<(), String> {
        self.memory.write_all_at(bytes, at).map_err(|error| format!("the clock's page: {error}"))
    }
}

/// Whether all threads of a process stand still, and none of them inside the function.
pub(crate) fn is_elsewhere(pid: u32) -> Result<bool, String> {
    let page = Page::of(pid)?;
    let (from, length) = page.address(CALLED)?;
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.map_err(|error| format!("the threads of {pid}: {error}"))?;
    for task in tasks.flatten() {
        // `running`, or the number of a call and its arguments, and then where the thread stands.
        let told = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        let at = told.split_whitespace().next_back().and_then(|text| text.strip_prefix("0x"));
        let Some(at) = at.and_then(|at| u64::from_str_radix(at, 16).ok()) else {
            return Ok(false);
        };
        if (from..from + length).contains(&at) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits until all threads of a stopped process stand still outside the function.
pub(crate) fn wait_until_elsewhere(pid: u32) -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("clocks of servers written in Go can be moved on x86-64 alone".to_owned());
    }
    let mut trouble = None;
    let still = within(LIMIT, || match is_elsewhere(pid) {
        Ok(elsewhere) => elsewhere,
        Err(error) => {
            trouble = Some(error);
            true
        }
    });
    match trouble {
        Some(error) => Err(error),
        None if still => Ok(()),
        None => Err(format!("the threads of {pid} do not stand still")),
    }
}

/// The page of code that the kernel gave to a process.
struct Page {
    memory: File,
    from: u64,
    bytes: Vec<u8>,
}

impl Page {
    fn of(pid: u32) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("the memory of {pid}: {error}");
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(failed)?;
        let line = maps.lines().find(|line| line.ends_with("[vdso]"));
        let range = line.and_then(|line| line.split(' ').next()?.split_once('-'));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let range = range.and_then(|(from, to)| Some((number(from)?, number(to)?)));
        let (from, to) = range.ok_or("the process has no clock's page")?;
        let mut options = File::options();
        let memory = options.read(true).write(true).open(format!("/proc/{pid}/mem"));
        let memory = memory.map_err(failed)?;
        let mut bytes = vec![0; usize::try_from(to - from).map_err(|_| "a page too large")?];
        memory.read_exact_at(&mut bytes, from).map_err(failed)?;
        Ok(Self { memory, from, bytes })
    }

    /// Where a function is, and how long.
    fn address(&self, name: &str) -> Result<(u64, u64), String> {
        let found = self.symbol(name);
        let (at, length) = found.ok_or_else(|| format!("the clock's page has no {name}"))?;
        Ok((self.from + at, length))
    }

    /// Looks a name up as a linker does: the section of dynamic symbols, and the one of their
    /// names.
    fn symbol(&self, name: &str) -> Option<(u64, u64)> {
        let sections = usize::try_from(self.number::<8>(0x28)?).ok()?;
        let (size, count) = (self.number::<2>(0x3a)?, self.number::<2>(0x3c)?);
        let section = |at: u64| sections.checked_add(usize::try_from(at * size).ok()?);
        // 11 is the type of such a section.
        let symbols =
            (0..count).filter_map(section).find(|at| self.number::<4>(at + 4) == Some(11))?;
        let (first, length) =
            (self.number::<8>(symbols + 0x18)?, self.number::<8>(symbols + 0x20)?);
        let names = self.number::<8>(section(self.number::<4>(symbols + 0x28)?)? + 0x18)?;
        let mut all = (first..first + length).step_by(24).filter_map(|at| usize::try_from(at).ok());
        let is_it = |at: &usize| {
            let start = self.number::<4>(*at).and_then(|text| usize::try_from(names + text).ok());
            let text = start.and_then(|start| self.bytes.get(start..)).unwrap_or_default();
            text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
        };
        let at = all.find(is_it)?;
        Some((self.number::<8>(at + 8)?, self.number::<8>(at + 16)?))
    }

    fn number<const N: usize>(&self, at: usize) -> Option<u64> {
        let mut whole = [0; 8];
        whole[..N].copy_from_slice(self.bytes.get(at..at.checked_add(N)?)?);
        Some(u64::from_le_bytes(whole))
    }
}
