//! A Redis to play with: prints its address and its process, and ends with its standard input.

use std::io::Read;

use servers::Redis;

fn main() -> std::process::ExitCode {
    let redis = match Redis::builder().try_start() {
        Ok(redis) => redis,
        Err(error) => {
            eprintln!("{error}");
            return std::process::ExitCode::FAILURE;
        }
    };
    println!("{} {} {}", redis.url(), redis.pid(), redis.dir().display());
    // Whatever ends the input, ends us.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::ExitCode::SUCCESS
}
