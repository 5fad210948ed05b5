//! `godel doctor`: who can reach the cluster, and how callers prove their identity.

use godel_client::{
    client::Client,
    context::{ContextFile, ContextToken},
    doctor::{self, ClusterFacts, ContextFacts, Diagnosis, LocalPlaces},
    exit::Failure,
    output::{self, Format, Paint},
};

use super::context;
use crate::args::DoctorArgs;

/// Shows the facts about this machine even if state does not answer.
pub(super) async fn run(
    wanted: DoctorArgs,
    address: Option<String>,
    context: Option<&str>,
    format: Format,
) -> Result<(), Failure> {
    let DoctorArgs { data_dir, identity_dir } = wanted;
    let asked = ask_state(address.clone(), context).await;
    // The context is read after its renewal. If its file cannot be read, `asked` has failed for that reason.
    let used = context::used_context(address.as_deref(), context).ok().flatten();
    let used = used.map(|(_, name, context)| ContextFacts {
        name,
        address: context.address,
        renews_token: context.token.as_ref().is_none_or(ContextToken::is_of_session),
        token_ends_ms: context.token.map(|token| token.expires_ms),
    });
    let contexts = ContextFile::of_environment().ok();
    let local = doctor::read_local(LocalPlaces { contexts, context: used, data_dir, identity_dir })?;
    let (cluster, failure) = match asked {
        Ok(cluster) => (Some(cluster), None),
        Err(failure) => (None, Some(failure)),
    };
    let diagnosis = Diagnosis::new(local, cluster);
    output::show(format, &diagnosis.view(), || diagnosis.text(Paint::stdout()))?;
    failure.map_or_else(|| diagnosis.verdict(), Err)
}

async fn ask_state(address: Option<String>, context: Option<&str>) -> Result<ClusterFacts, Failure> {
    let access = context::access(address, context).await?;
    doctor::read_cluster(&Client::new(access)?).await
}
