#include "native/base/giving_way.h"

namespace millpond::base {
namespace {

thread_local const std::atomic<bool>* current_flag = nullptr;
thread_local std::mutex* current_lowering = nullptr;

}  // namespace

GivingWayScope::GivingWayScope(const std::atomic<bool>* gives_way, std::mutex* lowering) {
  current_flag = gives_way;
  current_lowering = lowering;
}

GivingWayScope::~GivingWayScope() {
  current_flag = nullptr;
  current_lowering = nullptr;
}

bool GivesWay() { return current_flag != nullptr && current_flag->load(std::memory_order_relaxed); }

// The lock is had by whoever lowers the thread, for a system call, or by the thread itself.
KeptPriority::KeptPriority() {
  if (current_lowering != nullptr) {
    lowering_ = std::unique_lock(*current_lowering, std::try_to_lock);
  }
  is_kept_ = (current_lowering == nullptr || lowering_.owns_lock()) && !GivesWay();
}

}  // namespace millpond::base
