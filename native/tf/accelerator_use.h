#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "native/pjrt/accelerator.h"
#include "native/tf/host_tables.h"

namespace millpond::tf {

// How a version uses accelerators.
struct AcceleratorUse {
  // One or more. Each gets a replica of the version, and each request goes to one of them.
  std::vector<std::shared_ptr<const pjrt::Accelerator>> accelerators;
  std::vector<int64_t> rows;    // the numbers of rows that programs are compiled for, from 1 on
  std::string cache_directory;  // of compiled programs; "" for none
  bool only_if_worth = true;    // leaves signatures on the CPU that are faster there
  TablePlace tables = TablePlace::kAuto;
  std::string model;  // that the memory is charged to
  int64_t version = 0;
  int64_t memory_bytes_max = 0;  // that all versions of the model may have on each; 0: all
  bool is_needed = false;        // the parameters must be there at the end of the load
  bool is_low = false;           // the model's runs have low priority
  bool tunes_later = false;      // keeps what UntunedPrograms shows
  // Pins the memory of the version's parameters, of which so many bytes are copied; none: it stays
  // as it is.
  std::function<void(int64_t bytes)> pin_parameters;
};

}  // namespace millpond::tf
