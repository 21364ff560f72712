// The decision loop and what workers hold: requests of an earlier router, and whether the tokens tally.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/base/spdlog.h"
#include "router/app/decision_loop.h"
#include "router/worker_link/held_request.h"

namespace bfio::router {

namespace {

// More than any router gives out.
constexpr core::RequestId kIdsOfALife = core::RequestId{1} << 40;

}  // namespace

void DecisionLoop::SetStrangersApart(const Member& member, core::EpochMember& out) {
  std::vector<core::RequestId>& strangers = strangers_.emplace_back();
  // Of this router's own the scheduler knows.
  if (!member.survivor) return;
  absl::flat_hash_set<core::RequestId> adopted;
  for (const core::RequestSpec& spec : out.adopted) adopted.insert(spec.id);
  const auto stranger = [&](const core::ResidentRequest& resident) { return !adopted.contains(resident.id); };
  for (const core::ResidentRequest& resident : out.resident) {
    if (stranger(resident)) strangers.push_back(resident.id);
  }
  out.resident.erase(std::remove_if(out.resident.begin(), out.resident.end(), stranger), out.resident.end());
}

void DecisionLoop::Adopt(const Member& member, core::EpochMember& out) {
  int64_t adopted = 0;
  for (const v1::HeldRequest& held : member.announced) {
    absl::StatusOr<HeldState> state = FromHeld(held, options_.limits);
    if (!state.ok()) {
      spdlog::warn("worker {} announces a request that is dropped: {}", member.hello.worker_id(),
                   std::string(state.status().message()));
      continue;
    }
    // Somebody has started it again meanwhile: the worker is told to drop its own.
    if (requests_.Find(state->handle) != nullptr ||
        requests_.FindByName(state->request.request_id()) != nullptr) {
      continue;
    }
    if (!state->ended) {
      const auto resident = std::find_if(member.resident.begin(), member.resident.end(),
                                         [&](const auto& r) { return r.id == state->handle; });
      if (resident == member.resident.end()) continue;
      const uint32_t made = member.generated[static_cast<size_t>(resident - member.resident.begin())];
      const auto known = static_cast<uint32_t>(state->tokens.size()) - state->first_index;
      CountTokens(made, known);
      if (made != known) continue;
    }
    RequestRecord* record = requests_.Add(state->handle, std::move(state->request), nullptr, now_);
    record->delivered = static_cast<uint32_t>(state->tokens.size());
    record->had = record->delivered;
    record->placed_at = state->first_index;
    record->history = std::move(state->tokens);
    record->placed = now_;
    if (record->delivered > 0) record->first_token = now_;
    // Later ids are larger, whatever the clock says; and none that the earlier router may have given out,
    // which other workers may yet bring.
    core::RequestId next = next_id_.load();
    while (next <= record->id && !next_id_.compare_exchange_weak(next, record->id + kIdsOfALife)) {
    }
    totals_.set_accepted(totals_.accepted() + 1);
    tenants_.OnAccepted(record->tenant, record->request.tenant(), PromptTokens(record->request));
    totals_.set_adopted(totals_.adopted() + 1);
    ++adopted;
    const core::RequestId id = record->id;
    Commit(*record);
    record->resume_by = now_ + options_.resume_timeout;
    resume_deadlines_.emplace_back(record->resume_by, id);
    if (state->ended) {
      totals_.set_completed(totals_.completed() + 1);
      tenants_.OnCompleted(record->tenant, record->request.tenant());
      Retain(*record, record->MakeFinish(*state->ended, now_));
    }
    // 1: what is kept without any token is kept, too.
    Keep(id, 1 + record->prompt_bytes() + int64_t{4} * record->delivered);
    record = requests_.Find(id);
    if (record != nullptr && !record->ended) out.adopted.push_back(record->Spec(scheduler_.NextStep()));
  }
  if (adopted > 0) {
    spdlog::info("worker {} brings {} requests of an earlier router", member.hello.worker_id(), adopted);
  }
}

void DecisionLoop::AuditResidents(const std::vector<Member*>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Member& member = *ranks[rank];
    for (size_t i = 0; i < member.resident.size(); ++i) {
      const RequestRecord* record = requests_.Find(member.resident[i].id);
      if (record == nullptr || record->rank != static_cast<core::WorkerIndex>(rank)) continue;
      const uint32_t received = record->delivered - record->placed_at;
      CountTokens(member.generated[i], received);
      if (member.generated[i] == received) continue;
      // Cut off once the epoch stands: its requests are then replayed from what has been received.
      Post([session = member.session](DecisionLoop& loop) {
        Member* liar = loop.group_.Find(session.get());
        if (liar == nullptr) return;
        loop.group_.Expel(*liar, grpc::Status(grpc::StatusCode::DATA_LOSS, "its tokens do not tally"),
                          loop.now_);
      });
    }
  }
}

void DecisionLoop::CountTokens(uint32_t made, uint32_t received) {
  if (made > received) totals_.set_tokens_lost(totals_.tokens_lost() + (made - received));
  if (made < received) totals_.set_tokens_duplicated(totals_.tokens_duplicated() + (received - made));
}

}  // namespace bfio::router
