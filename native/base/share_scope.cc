#include "native/base/share_scope.h"

#include "native/base/no_memory.h"

namespace millpond::base {
namespace {

thread_local ByteBudget::Share* current_share = nullptr;

}  // namespace

ShareScope::ShareScope(ByteBudget::Share* share) : outer_(current_share) { current_share = share; }
ShareScope::~ShareScope() { current_share = outer_; }

bool ShareScope::Add(int64_t bytes) {
  return current_share == nullptr || current_share->Resize(current_share->bytes() + bytes);
}

Status ShareScope::NoMemoryFor(const std::string& what) {
  return base::NoMemoryFor(what, *current_share->budget());
}

}  // namespace millpond::base
