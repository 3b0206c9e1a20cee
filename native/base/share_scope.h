#pragma once

#include <string>

#include "native/base/byte_budget.h"
#include "native/base/status.h"

namespace millpond::base {

// Counts what this thread decodes in `share` while the scope lives. Decoders take no argument for
// the share. A thread without a scope counts nothing.
class ShareScope {
 public:
  explicit ShareScope(ByteBudget::Share* share);
  ~ShareScope();
  ShareScope(const ShareScope&) = delete;
  ShareScope& operator=(const ShareScope&) = delete;

  // Adds `bytes` to the share of this thread. Returns false if the budget has too few bytes left.
  static bool Add(int64_t bytes);
  // Returns base::NoMemoryFor of the budget of this thread's share. Only to be called after Add has
  // returned false.
  static Status NoMemoryFor(const std::string& what);

 private:
  ByteBudget::Share* const outer_;
};

}  // namespace millpond::base
