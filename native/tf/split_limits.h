#pragma once

#include <map>
#include <set>
#include <string>

#include "native/tf/resource_reads.h"

namespace millpond::tf {

// The reasons why nodes stay on the host, by their names.
using HostNodes = std::map<std::string, std::string>;

// Nodes and tables that must stay on the host although XLA could compile them.
struct SplitLimits {
  HostNodes barred;                   // nodes of the split graph
  std::set<ResourceKey> host_tables;  // variables in which only the host looks rows up
};

}  // namespace millpond::tf
