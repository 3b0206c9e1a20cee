#include "native/servable/batching_servable.h"

#include <algorithm>
#include <utility>

namespace millpond::servable {

BatchingServable::BatchingServable(std::unique_ptr<Servable> inner, BatchSettings settings)
    : inner_(std::move(inner)),
      settings_(std::move(settings)),
      joint_state_(
          std::make_unique<BatchedSignature>("", BatchKeyOfSeveral(inner_->id().name), settings_)) {
  // On until a check refuses it. FindBatched looks at each signature too.
  joint_state_->Switch(true, "");
  for (const auto& [name, signature] : inner_->signatures()) {
    states_.push_back(
        std::make_unique<BatchedSignature>(name, BatchKeyOf(inner_->id().name, name), settings_));
  }
}

BatchingServable::~BatchingServable() = default;

BatchedSignature* BatchingServable::Find(const tensor::Signature& signature) const {
  const auto found = std::find_if(states_.begin(), states_.end(),
                                  [&](const auto& state) { return state->name == signature.name; });
  return found == states_.end() ? nullptr : found->get();
}

BatchedSignature* BatchingServable::FindOn(const tensor::Signature& signature) const {
  BatchedSignature* const state = Find(signature);
  return state != nullptr && state->is_on.load(std::memory_order_relaxed) ? state : nullptr;
}

void BatchingServable::TurnOffIfWriting(const PreparedRun& run) const {
  if (!inner_->MayChangeAnswers()) return;
  for (const tensor::Signature* signature : run.signatures) {
    BatchedSignature* const state = FindOn(*signature);
    if (state == nullptr) continue;
    state->Switch(false, "a request changed a variable, so the order of requests counts");
  }
}

BatchedSignature* BatchingServable::FindBatched(const PreparedRun& run) const {
  TurnOffIfWriting(run);
  if (run.outputs) return FindOn(*run.signatures.front());
  if (!joint_state_->is_on) return nullptr;
  const bool are_on =
      std::all_of(run.signatures.begin(), run.signatures.end(),
                  [this](const tensor::Signature* each) { return FindOn(*each) != nullptr; });
  return are_on ? joint_state_.get() : nullptr;
}

BatchedVersion BatchingServable::ForQueues() const {
  BatchedVersion version{{joint_state_->key}, settings_.waiting_requests_max};
  for (const auto& state : states_) version.keys.push_back(state->key);
  return version;
}

void BatchingServable::LearnCost(const tensor::Signature& signature, int64_t rows,
                                 int64_t run_ns) const {
  if (BatchedSignature* const state = Find(signature)) state->cost.Record(rows, run_ns);
}

void BatchingServable::NoteVerdict(const tensor::Signature& signature,
                                   const tensor::RowVerdict& verdict) const {
  BatchedSignature* const state = Find(signature);
  if (state == nullptr) return;
  const std::lock_guard<std::mutex> lock(state->mutex);
  state->verdict = verdict;
}

tensor::RowVerdict BatchingServable::VerdictOf(const tensor::Signature& signature) const {
  BatchedSignature* const state = Find(signature);
  if (state == nullptr) return {};
  const std::lock_guard<std::mutex> lock(state->mutex);
  return state->verdict;
}

std::vector<tensor::Magnitude> BatchingServable::NoteMagnitudes(
    const tensor::Signature& signature, const tensor::TensorList& result) const {
  BatchedSignature* const state = Find(signature);
  if (state == nullptr) return {};
  std::vector<std::string> names;
  for (const tensor::TensorSpec& output : signature.outputs) names.push_back(output.name);
  state->magnitudes.Note(names, result);
  return state->magnitudes.Of(names, result);
}

void BatchingServable::TurnOn(const tensor::Signature& signature, const BatchChecks& checks) const {
  BatchedSignature* const state = Find(signature);
  if (state == nullptr) return;
  state->CheckBatches(checks);
  if (joint_state_->is_on) joint_state_->CheckBatches(checks);
  state->Switch(true, "");
}

void BatchingServable::Refuse(const tensor::Signature& signature, std::string reason) const {
  if (BatchedSignature* const state = Find(signature)) state->Switch(false, std::move(reason));
}

void BatchingServable::RefusePadding(const tensor::Signature& signature,
                                     const std::string& reason) const {
  if (BatchedSignature* const state = Find(signature)) state->RefusePadding(reason);
}

int64_t BatchingServable::BatchRows(int64_t rows) const {
  return settings_.PaddedRows(std::min(rows, settings_.rows_max));
}

std::vector<HotBatch> BatchingServable::ListHotBatches() const {
  std::vector<HotBatch> all = joint_state_->hot_batches.Batches();
  for (const auto& state : states_) {
    for (HotBatch& batch : state->hot_batches.Batches()) all.push_back(std::move(batch));
  }
  SortByCount(&all);
  return all;
}

std::vector<SignatureBatching> BatchingServable::Batching() const {
  std::vector<SignatureBatching> all;
  for (const auto& state : states_) {
    const std::lock_guard<std::mutex> lock(state->mutex);
    all.push_back({state->name, state->is_on,
                   state->is_on ? state->padding_refusal : state->refusal, state->verdict,
                   state->cost.joined_rows_max(/*is_thread_free=*/false),
                   state->statistics.Figures()});
  }
  const BatchFigures joint = joint_state_->statistics.Figures();
  if (joint.run_count > 0) {
    const std::lock_guard<std::mutex> lock(joint_state_->mutex);
    all.push_back({"",
                   joint_state_->is_on,
                   joint_state_->refusal,
                   {},
                   joint_state_->cost.joined_rows_max(/*is_thread_free=*/false),
                   joint});
  }
  return all;
}

}  // namespace millpond::servable
