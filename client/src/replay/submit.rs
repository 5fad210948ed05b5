//! Submission of a trace on one stream, and the ledger of what was acknowledged.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::Path,
    sync::Arc,
};

use godel_proto::v1;
use tokio_util::sync::CancellationToken;

use super::watch::ReplayBoard;
use crate::{
    bulk,
    client::Client,
    exit::{Code, Failure},
};

pub(super) struct Submitter {
    client: Client,
    ledger: Option<BufWriter<File>>,
}

impl Submitter {
    pub(super) fn new(client: Client, ledger: Option<&Path>) -> Result<Self, Failure> {
        let ledger = ledger
            .map(|path| {
                File::create(path).map(BufWriter::new).map_err(|error| {
                    Failure::usage(format!("the ledger {} cannot be written: {error}", path.display()))
                })
            })
            .transpose()?;
        Ok(Self { client, ledger })
    }

    /// Submits every unit in order; returns what was refused, by name, and with which code each alone would have ended.
    pub(super) async fn run(
        mut self,
        units: Arc<Vec<v1::UnitSpec>>,
        board: Arc<ReplayBoard>,
        stop: CancellationToken,
    ) -> Result<Vec<(Code, String)>, Failure> {
        let sending = Arc::clone(&board);
        let sent = Arc::new(move |idx| sending.sent(idx, sending.started()));
        let (submitted, client) = (Arc::clone(&units), self.client.clone());
        let mut durable = |fresh: &[usize], revision: u64| {
            self.acknowledge(&submitted, fresh, revision).map_err(|error| {
                Failure::new(Code::Failed, format!("the ledger cannot be written: {error}"))
            })?;
            board.acknowledged(fresh.len());
            Ok(())
        };
        let refused = tokio::select! {
            refused = bulk::submit(&client, Arc::clone(&units), sent, &mut durable) => refused?,
            () = stop.cancelled() => Vec::new(),
        };
        let said =
            |(idx, error): &bulk::RefusedUnit| (bulk::failure(error).code, refusal(&units[*idx], error));
        Ok(refused.iter().map(said).collect())
    }

    fn acknowledge(&mut self, units: &[v1::UnitSpec], fresh: &[usize], revision: u64) -> std::io::Result<()> {
        let Some(ledger) = &mut self.ledger else { return Ok(()) };
        for meta in fresh.iter().filter_map(|idx| units[*idx].meta.as_ref()) {
            writeln!(ledger, "{},{},{revision}", meta.uid, meta.name)?;
        }
        ledger.flush()
    }
}

fn refusal(unit: &v1::UnitSpec, error: &v1::SubmitError) -> String {
    let name = unit.meta.as_ref().map_or("?", |meta| meta.name.as_str());
    let fields: Vec<String> = error
        .violations
        .iter()
        .map(|violation| format!("{}: {}", violation.field, violation.description))
        .collect();
    if fields.is_empty() {
        format!("{name}: {}", error.message)
    } else {
        format!("{name}: {}", fields.join(", "))
    }
}
