#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

// A count that a test may read while a thread of the driver's calls changes it.
class FakePjrtCount {
 public:
  FakePjrtCount() = default;
  FakePjrtCount(const FakePjrtCount& other) : count_(other.count_.load()) {}
  FakePjrtCount& operator=(const FakePjrtCount& other) {
    count_ = other.count_.load();
    return *this;
  }
  FakePjrtCount& operator+=(int64_t more) {
    count_ += more;
    return *this;
  }
  FakePjrtCount& operator-=(int64_t fewer) { return *this += -fewer; }
  operator int64_t() const { return count_; }

 private:
  std::atomic<int64_t> count_{0};
};

// The controls of a PJRT plugin for tests, fake_pjrt_plugin.cc. Its programs are texts of the form
// "ROWS K": K inputs of one float a row in one block (PackedTensors), then a parameter of one
// float; one output, a float a row, the sum of the inputs' row times the parameter. If a third
// number follows, it is added to each row of the output. A text of the form "scatter TABLE_ROWS
// WIDTH ROWS" is a program of RowScatter, for a table of floats. It takes over the table's memory
// unless it must not. All memory is this process's.
struct FakePjrtControls {
  bool is_cuda = false;                  // of a plugin that is opened now
  int64_t device_count = 1;              // of a client that is made now, at most 4
  int64_t memory_bytes_max = INT64_MAX;  // of all buffers together
  bool fails_runs = false;               // as a device that is gone does
  int64_t failing_device = -1;           // the only one whose runs and transfers fail; -1: none
  bool loads_for_the_first = false;      // a plugin that loads all programs for its first device
  bool fails_transfers = false;          // to the device
  bool serializes = true;
  int64_t load_error = 0;      // the code with which executables are not loaded; 0: they are
  bool has_topologies = true;  // compiles for devices that are not there
  bool shows_topology = true;  // of a client
  bool is_of_cpus = false;
  bool counts_memory = true;
  bool pins = true;
  bool unpins = true;            // false: as a device that is gone
  bool crashes_in_pins = false;  // ends the process
  // Called at the start of each pin and unpin, and of each load of an executable for a device: they
  // may hang.
  std::function<void()> before_pin;
  std::function<void()> before_unpin;
  std::function<void(int64_t device)> before_load;
  int64_t crashing_part = -1;    // the part of a tensor that ends the process, counted from now
  bool transfers_parts = true;   // of a plugin that is opened now
  bool is_column_major = false;  // lays tensors out in another way than the process
  int64_t failing_part = -1;     // the part of a tensor whose copy fails, counted from now
  // The same, but the copy fails after it has begun. As XLA's client does, its event reports
  // success, the tensor has the error, and a later part of the tensor ends the process.
  int64_t failing_copy = -1;
  int64_t temporary_bytes = 0;  // that a program says a run takes
  int64_t code_bytes = 0;       // that a program says it takes itself
  // The time after which an event has happened: of a copy to the device, of a run, of a copy back.
  int64_t transfer_in_ns = 0;
  int64_t run_ns = 0;
  int64_t row_ns = 0;  // that a run takes longer for each of its program's rows
  int64_t transfer_out_ns = 0;
  // The device computes one run at a time, and copies one tensor at a time each way.
  bool is_serial = false;
  int64_t link_in_free_ns = 0;  // when the transfers to the device, as `is_serial`, are done
  int64_t device_free_ns = 0;
  int64_t link_out_free_ns = 0;
  std::vector<int64_t> transfer_in_begin_ns;  // of all copies to the device, if `is_serial`
  std::vector<int64_t> transfer_out_end_ns;   // of all copies back, if `is_serial`
  // A client that is made now does all steps as late as the API permits (late_device.h), with this
  // seed. One such client at a time. Copies to the device take no time then.
  bool is_late = false;
  uint32_t late_seed = 1;
  uint32_t late_fails_one_of = 0;  // calls and steps of a late device, on average; 0: none
  int64_t misuse_count = 0;        // uses of freed buffers and of memory that another copy has
  int64_t early_run_count = 0;     // runs that were started before a copy to an argument had ended
  int64_t refused_count = 0;       // buffers for which there was no memory
  int64_t most_used_bytes = 0;     // what a client has taken from a GPU, which it keeps
  int64_t used_bytes = 0;          // of all buffers together, until nothing uses their memory
  int64_t live_buffers = 0;
  int64_t live_executables = 0;
  FakePjrtCount live_clients;
  int64_t live_errors = 0;
  int64_t live_events = 0;
  int64_t live_topologies = 0;
  int64_t transfers_under_way = 0;  // whose events were not waited for
  int64_t transfers_under_way_max = 0;
  FakePjrtCount live_pins;  // of this process's memory
  FakePjrtCount pin_count;
  int64_t overlapping_pins = 0;
  int64_t unpinned_in_copies = 0;  // pins that ended while a copy from them was under way
  int64_t live_managers = 0;       // of transfers
  int64_t part_count = 0;
  int64_t part_bytes_max = 0;
  int64_t parts_of_one_max = 0;    // of one tensor, whose events were not waited for
  int64_t parts_alone_count = 0;   // that began while no other transfer was under way
  int64_t copies_from_pinned = 0;  // to the device
  int64_t copies_to_pinned = 0;
  int64_t compile_count = 0;
  int64_t untuned_compile_count = 0;  // of these, with other options than a device
  int64_t load_count = 0;
  bool donates = true;           // writes over tables
  int64_t donated_count = 0;     // tables that were written over
  int64_t failing_scatter = -1;  // the step that fails, counted from now
  int64_t scatter_count = 0;     // the steps so far
  int64_t run_count = 0;
  int64_t device_run_counts[4] = {};
};

// The plugin's own, found by the name "FakePjrtControlsOf".
extern "C" FakePjrtControls* FakePjrtControlsOf();
// True if a step of a late device that is not done reads or writes one of these bytes. Found by the
// name "FakePjrtUses".
extern "C" bool FakePjrtUses(const void* begin, size_t bytes);
