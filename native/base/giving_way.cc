#include "native/base/giving_way.h"

namespace millpond::base {
namespace {

thread_local const std::atomic<bool>* current_flag = nullptr;

}  // namespace

GivingWayScope::GivingWayScope(const std::atomic<bool>* gives_way) { current_flag = gives_way; }

GivingWayScope::~GivingWayScope() { current_flag = nullptr; }

bool GivesWay() { return current_flag != nullptr && current_flag->load(std::memory_order_relaxed); }

}  // namespace millpond::base
