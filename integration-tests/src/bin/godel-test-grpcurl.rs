//! What grpcurl does, as far as documents use it: `-plaintext`, `-d JSON`, `list`, `describe SYMBOL`, and calls of methods.

use std::io::Write as _;

use anyhow::{Context as _, Result, bail, ensure};
use godel_integration_tests::{
    api::channel,
    reflect::{Protocol, ReflectionClient, to_json},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut is_plain, mut data, mut words) = (false, "{}".to_owned(), Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-plaintext" => is_plain = true,
            "-d" => data = args.next().context("-d needs a message")?,
            flag if flag.starts_with('-') => bail!("{flag} is not known here"),
            _ => words.push(arg),
        }
    }
    ensure!(is_plain, "without -plaintext grpcurl speaks TLS");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (address, rest) = words.split_first().context("an address is missing")?;
    let mut client = ReflectionClient::new(channel(address)?, Protocol::V1);
    match rest {
        ["list"] => print(&client.list_services().await?.join("\n")),
        ["describe", symbol] => print(&client.describe(symbol).await?),
        [method] => {
            let (service, method) = method.split_once('/').context("a method is SERVICE/METHOD")?;
            client.load(service).await?;
            if !client.is_streaming(service, method)? {
                return print(&format!("{:#}", client.call(service, method, &data).await?));
            }
            let mut answers = client.stream(service, method, &data).await?;
            while let Some(answer) = answers.message().await? {
                print(&format!("{:#}", to_json(&answer)?))?;
            }
            Ok(())
        }
        _ => bail!("this is no call: {rest:?}"),
    }
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}
