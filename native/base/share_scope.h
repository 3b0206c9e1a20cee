#pragma once

#include <string>

#include "native/base/byte_budget.h"
#include "native/base/status.h"

namespace millpond::base {

// While it lives, what is decoded on this thread counts in `share`: decoders have no argument for
// it. A thread without a scope counts nothing.
class ShareScope {
 public:
  explicit ShareScope(ByteBudget::Share* share);
  ~ShareScope();
  ShareScope(const ShareScope&) = delete;
  ShareScope& operator=(const ShareScope&) = delete;

  // Counts `bytes` more in the share of this thread; false if the budget has too little left.
  static bool Add(int64_t bytes);
  // See base::NoMemoryFor. Only after Add has returned false.
  static Status NoMemoryFor(const std::string& what);

 private:
  ByteBudget::Share* const outer_;
};

}  // namespace millpond::base
