#include "native/base/share_scope.h"

#include "native/base/clock.h"
#include "native/base/no_memory.h"

namespace millpond::base {
namespace {

thread_local ShareScope* current_scope = nullptr;

}  // namespace

ShareScope::ShareScope(ByteBudget::Share* share, const ReplyLimits& limits)
    : share_(share),
      limits_(limits),
      outer_(current_scope),
      pending_bytes_(outer_ == nullptr ? 0 : outer_->pending_bytes_) {
  current_scope = this;
}

ShareScope::~ShareScope() { current_scope = outer_; }

bool ShareScope::Add(int64_t bytes) {
  ShareScope* const scope = current_scope;
  if (scope == nullptr) return true;
  if (scope->pending_bytes_ + bytes < kStepBytes) {
    scope->pending_bytes_ += bytes;
    return true;
  }
  if (!scope->share_->Add(scope->pending_bytes_ + bytes)) return false;
  scope->pending_bytes_ = 0;
  return true;
}

Status ShareScope::NoMemoryFor(const std::string& what) {
  return base::NoMemoryFor(what, *current_scope->share_->budget());
}

Status ShareScope::CheckIsWanted() {
  if (current_scope == nullptr) return {};
  const ReplyLimits& limits = current_scope->limits_;
  if (limits.is_cancelled != nullptr && limits.is_cancelled->load(std::memory_order_relaxed)) {
    return {Code::kCancelled, "the request was cancelled while it was decoded"};
  }
  if (limits.deadline_ns != ReplyLimits::kNoDeadline && CoarseMonotonicNs() >= limits.deadline_ns) {
    return {Code::kDeadlineExceeded, "the request's deadline passed while it was decoded"};
  }
  return {};
}

bool DecodeLook::Look() {
  status_ = ShareScope::CheckIsWanted();
  left_ = status_.ok() ? kLookSteps : 0;
  return status_.ok();
}

}  // namespace millpond::base
