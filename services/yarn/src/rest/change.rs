//! Calls that change an application.

use axum::http::StatusCode;
use godel_core_yarn::ids::YarnApplicationId;
use godel_core_yarn_leader::ManagerRefusal;
use serde_json::{Value, json};

use super::{
    Call, Reply, apps,
    json::resource,
    problem::Problem,
    route::{CLUSTER, Change},
    submit, time,
};

impl Call {
    pub(super) async fn change(&self, change: Change, body: Option<&Value>) -> Result<Reply, Problem> {
        let body = body.unwrap_or(&Value::Null);
        match change {
            Change::NewApplication => {
                let (id, maximum) = self.face.manager.new_application().await?;
                Ok(Reply::Json(json!({
                    "application-id": id.to_string(),
                    "maximum-resource-capability": resource(&maximum),
                })))
            }
            Change::Submit => {
                let (id, submitted) = submit::read(body, &self.by.user)?;
                // YARN answers this one with 400, unlike other refusals of its access controls.
                self.face.manager.submit(id, &self.by, submitted).await.map_err(|refusal| match refusal {
                    ManagerRefusal::QueueNotAllowed(why) => Problem::bad_request(why),
                    other => other.into(),
                })?;
                Ok(Reply::At(StatusCode::ACCEPTED, self.at(id), None))
            }
            Change::State(id) => self.kill(id, body).await,
            Change::Queue(id) => {
                let wanted = text(body, "queue")?;
                let mut queue = self.face.manager.application(id)?.queue;
                if queue != wanted {
                    queue = self.face.manager.move_to(id, &self.by, wanted).await?;
                }
                Ok(Reply::Json(json!({ "queue": queue })))
            }
            Change::Priority(id) => {
                let wanted = body.get("priority").and_then(submit::number);
                let wanted = wanted.and_then(|wanted| i32::try_from(wanted).ok());
                let wanted = wanted.ok_or_else(|| missing("priority"))?;
                let mut priority = self.face.manager.application(id)?.priority;
                if priority != wanted {
                    priority = self.face.manager.set_priority(id, &self.by, wanted).await?;
                }
                Ok(Reply::Json(json!({ "priority": priority })))
            }
            Change::Timeout(id) => {
                // With its root, as YARN writes it, or without.
                let body = body.get("timeout").unwrap_or(body);
                apps::lifetime(text(body, "type")?)?;
                let at = text(body, "expiryTime")?;
                let at_ms = time::read(at).ok_or_else(|| {
                    Problem::bad_request("expiryTime: is no time as 2026-11-27T20:15:00.000+0000")
                })?;
                self.face.manager.set_timeout(id, &self.by, at_ms).await?;
                let app = self.face.manager.application(id)?;
                Ok(Reply::Json(json!({ "timeout": apps::timeout(&app, self.face.clock.wall_ms()) })))
            }
        }
    }

    async fn kill(&self, id: YarnApplicationId, body: &Value) -> Result<Reply, Problem> {
        let wanted = text(body, "state")?;
        let app = self.face.manager.application(id)?;
        if app.state.name() == wanted {
            return Ok(Reply::Json(json!({ "state": wanted })));
        }
        if wanted != "KILLED" {
            return Err(Problem::bad_request("Only 'KILLED' is allowed as a target state."));
        }
        let why = body.get("diagnostics").and_then(Value::as_str).unwrap_or_default();
        let is_over = self.face.manager.kill(id, &self.by, why).await?;
        let state = json!({ "state": self.face.manager.application(id)?.state.name() });
        if is_over {
            return Ok(Reply::Json(state));
        }
        Ok(Reply::At(StatusCode::ACCEPTED, format!("{}/state", self.at(id)), Some(state)))
    }

    /// Where an application is seen.
    fn at(&self, id: YarnApplicationId) -> String {
        format!("http://{}{CLUSTER}/apps/{id}", self.host)
    }
}

fn text<'a>(body: &'a Value, name: &str) -> Result<&'a str, Problem> {
    body.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Problem {
    Problem::bad_request(format!("{name}: is missing in the body, or of another type"))
}
