//! BudgetService.

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_core_dispatcher::{leader::Edited, record_changes::Edit};
use godel_domain::{budget_spec::BudgetSpec, record_change::RecordChange};
use godel_kit::{
    security::{PersonCall, person_call},
    status,
};
use godel_proto::v1::{self, budget_service_server::BudgetService};
use godel_rules::budget::check::BudgetChange;
use godel_wire::{BadField, from_proto, hidden::HideNames as _};
use tonic::{Request, Response, Status};

use super::records::{of_one, required};
use crate::{leader_client::Front, pages};

pub(crate) struct BudgetRpc {
    front: Front,
}

impl BudgetRpc {
    pub(crate) fn new(front: Front) -> Self {
        Self { front }
    }

    async fn edit(
        &self,
        call: &PersonCall,
        change: BudgetChange,
        expected_revision: u64,
        unread: Vec<BadField>,
    ) -> Result<Edited, Status> {
        let expected_revision = Revision(expected_revision);
        let edit = Edit { budgets: vec![change], expected_revision, ..Edit::default() };
        self.front.edit(call, edit, unread, false).await
    }

    async fn put(
        &self,
        call: &PersonCall,
        budget: Option<v1::DisruptionBudget>,
        expected_revision: u64,
        change: impl FnOnce(Arc<BudgetSpec>) -> BudgetChange,
    ) -> Result<Edited, Status> {
        let budget = budget.ok_or_else(|| status::invalid_argument([BadField::new("budget", "missing")]))?;
        let (spec, unread) = from_proto::given_budget(budget);
        self.edit(call, change(Arc::new(spec)), expected_revision, unread).await
    }
}

#[tonic::async_trait]
impl BudgetService for BudgetRpc {
    async fn create_budget(
        &self,
        request: Request<v1::CreateBudgetRequest>,
    ) -> Result<Response<v1::CreateBudgetResponse>, Status> {
        let call = person_call(&request);
        let v1::CreateBudgetRequest { budget } = request.into_inner();
        let (revision, duplicate) = of_one(&self.put(&call, budget, 0, RecordChange::Create).await?);
        Ok(Response::new(v1::CreateBudgetResponse { revision, duplicate }))
    }

    async fn get_budget(
        &self,
        request: Request<v1::GetBudgetRequest>,
    ) -> Result<Response<v1::GetBudgetResponse>, Status> {
        let sight = person_call(&request).sight();
        let name = request.into_inner().name;
        let budget =
            Some(self.front.named("disruption budget", name, pages::show_budget).await?.within_sight(&sight));
        Ok(Response::new(v1::GetBudgetResponse { budget }))
    }

    async fn list_budgets(
        &self,
        request: Request<v1::ListBudgetsRequest>,
    ) -> Result<Response<v1::ListBudgetsResponse>, Status> {
        let sight = person_call(&request).sight();
        let v1::ListBudgetsRequest { page_size, page_token } = request.into_inner();
        let list = pages::list_budgets;
        let (budgets, token) = self.front.page(page_size, &page_token, list).await?;
        Ok(Response::new(v1::ListBudgetsResponse {
            budgets: budgets.within_sight(&sight),
            next_page_token: token.text(),
            revision: token.revision,
            total: token.total,
        }))
    }

    async fn update_budget(
        &self,
        request: Request<v1::UpdateBudgetRequest>,
    ) -> Result<Response<v1::UpdateBudgetResponse>, Status> {
        let call = person_call(&request);
        let v1::UpdateBudgetRequest { budget, expected_revision } = request.into_inner();
        let (revision, _) = of_one(&self.put(&call, budget, expected_revision, RecordChange::Update).await?);
        Ok(Response::new(v1::UpdateBudgetResponse { revision }))
    }

    async fn delete_budget(
        &self,
        request: Request<v1::DeleteBudgetRequest>,
    ) -> Result<Response<v1::DeleteBudgetResponse>, Status> {
        let call = person_call(&request);
        let v1::DeleteBudgetRequest { name, expected_revision } = request.into_inner();
        let change = RecordChange::Delete(required(name)?);
        let (revision, _) = of_one(&self.edit(&call, change, expected_revision, Vec::new()).await?);
        Ok(Response::new(v1::DeleteBudgetResponse { revision }))
    }
}
