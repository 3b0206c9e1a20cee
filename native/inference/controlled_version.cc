#include "native/inference/controlled_version.h"

#include <optional>
#include <utility>

#include "native/inference/answer.h"

namespace millpond::inference {
namespace {

using base::Status;
using servable::ServableHandle;

std::string Describe(const servable::ServableId& id) {
  return "model '" + id.name + "' version " + std::to_string(id.version);
}

}  // namespace

ControlledVersion::ControlledVersion(std::shared_ptr<servable::ServableEntry> entry,
                                     const servable::BatchingServable* batching, int64_t run_ns_max)
    : entry_(std::move(entry)), run_ns_max_(run_ns_max), batching_(batching) {
  if (batching != nullptr) verifier_ = std::make_shared<BatchVerifier>(*batching);
}

Status ControlledVersion::CheckIsAlive() const {
  if (!entry_->is_destroyed()) return {};
  return base::FailedPrecondition(Describe(entry_->id()) + " is destroyed; load it again");
}

base::StatusOr<ServableHandle> ControlledVersion::Pin() const {
  MILLPOND_RETURN_IF_ERROR(CheckIsAlive());
  ServableHandle handle = ServableHandle::UnlessRetired(entry_.get());
  if (handle) return handle;
  return base::FailedPrecondition(Describe(entry_->id()) + " is being unloaded; load it again");
}

VerifierLimits ControlledVersion::Limits(bool may_write) const {
  VerifierLimits limits{run_ns_max_, &are_runs_cancelled_};
  limits.may_write = may_write;
  return limits;
}

base::StatusOr<std::string> ControlledVersion::Answer(std::string_view method,
                                                      std::string_view request,
                                                      bool may_write) const {
  const auto handle = Pin();
  if (!handle.ok()) return handle.status();
  const VerifierLimits limits = Limits(may_write);
  std::shared_ptr<BatchVerifier> verifier;
  {
    const std::lock_guard<std::mutex> lock(batching_mutex_);
    verifier = verifier_;
  }
  if (verifier != nullptr) return verifier->Answer(method, {&request, 1}, limits);
  return AnswerRequest(*handle.value(), method, {&request, 1}, limits.run_ns_max,
                       limits.is_cancelled, limits.may_write);
}

Status ControlledVersion::MakeCallable(std::string_view request) const {
  const auto handle = Pin();
  if (!handle.ok()) return handle.status();
  return inference::MakeCallable(*handle.value(), {&request, 1});
}

base::StatusOr<int64_t> ControlledVersion::VerifyBatching(bool may_write_variables,
                                                          const ControlledVersion* predecessor) {
  const auto handle = Pin();
  if (!handle.ok()) return handle.status();
  std::shared_ptr<BatchVerifier> verifier;
  {
    const std::lock_guard<std::mutex> lock(batching_mutex_);
    verifier = std::exchange(verifier_, nullptr);
  }
  if (verifier == nullptr) return int64_t{0};
  const VerifierLimits limits = Limits(/*may_write=*/false);
  MILLPOND_RETURN_IF_ERROR(verifier->Conclude(may_write_variables, limits));
  if (predecessor == nullptr) return int64_t{0};
  return verifier->WarmUp(predecessor->ListHotBatches(), limits);
}

std::vector<servable::SignatureBatching> ControlledVersion::Batching() const {
  const std::lock_guard<std::mutex> lock(batching_mutex_);
  return batching_ != nullptr ? batching_->Batching() : ended_batching_;
}

std::vector<servable::HotBatch> ControlledVersion::ListHotBatches() const {
  const std::lock_guard<std::mutex> lock(batching_mutex_);
  if (batching_ == nullptr) return {};
  return batching_->ListHotBatches();
}

Status ControlledVersion::Destroy() {
  const servable::BatchingServable* ended = nullptr;
  {
    // Readers of the state do not wait for the end, which may take long.
    const std::lock_guard<std::mutex> lock(batching_mutex_);
    ended = std::exchange(batching_, nullptr);
    if (ended != nullptr) ended_batching_ = ended->Batching();
  }
  const Status destroyed = entry_->Destroy();
  if (destroyed.ok() || ended == nullptr) return destroyed;
  const std::lock_guard<std::mutex> lock(batching_mutex_);
  batching_ = ended;
  return destroyed;
}

}  // namespace millpond::inference
