#include "native/base/sharded.h"

#include "native/base/thread_cores.h"

namespace millpond::base {
namespace {

int PowerOfTwo(int at_least, int at_most) {
  int number = 1;
  while (number < at_least && number < at_most) number *= 2;
  return number;
}

// The cores of the process. Its first caller is not a request thread, which may have one core.
int CoreCount() {
  static const int kCount = static_cast<int>(AllowedCores().size());
  return kCount;
}

}  // namespace

int ShardCountForRequestThreads() { return PowerOfTwo(CoreCount(), 32); }

int CellCountForRequestThreads() { return PowerOfTwo(4 * CoreCount(), 128); }

}  // namespace millpond::base
