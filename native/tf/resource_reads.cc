#include "native/tf/resource_reads.h"

#include "absl/status/status.h"
#include "native/tf/graph_walk.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/lookup_interface.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/kernels/initializable_lookup_table.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {
namespace {

using tensorflow::NodeDef;

bool BeginsWith(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

bool InitializesTable(const std::string& op) {
  return BeginsWith(op, "InitializeTable") || BeginsWith(op, "LookupTableImport") ||
         BeginsWith(op, "LookupTableInsert");
}

// Returns true if a request may skip the inputs of `op` (branches), or if `op` does not read the
// variable or the table that it takes. Reading the size of an empty table is no error, for example.
bool MayNotRead(const std::string& op) {
  const bool is_branch = op == "If" || op == "StatelessIf" || op == "Case" ||
                         op == "StatelessCase" || op == "Switch" || op == "RefSwitch";
  const bool is_other_table_op =
      BeginsWith(op, "LookupTable") && !BeginsWith(op, "LookupTableFind");
  return is_branch || op == "VarIsInitializedOp" || op == "AssignVariableOp" ||
         InitializesTable(op) || is_other_table_op;
}

// Returns the name by which the table of a node is shared, or "" if the kernel names it.
std::string TableName(const NodeDef& node) {
  const std::string name = TextOf(node, "shared_name");
  const auto by_node = node.attr().find("use_node_name_sharing");
  const bool is_by_node = by_node != node.attr().end() && by_node->second.b();
  return name.empty() && is_by_node ? node.name() : name;
}

// Returns true if `is_there` is true for the resource manager of some device of the session, or if
// the session's devices are not accessible.
template <typename IsThere>
bool IsOnSomeDevice(tensorflow::Session* session, const ResourceKey& key, const IsThere& is_there) {
  const tensorflow::DeviceMgr* manager = nullptr;
  if (!session->LocalDeviceManager(&manager).ok()) return true;
  for (tensorflow::Device* const device : manager->ListDevices()) {
    tensorflow::ResourceMgr* const resources = device->resource_manager();
    if (resources == nullptr) continue;
    const std::string container =
        key.container.empty() ? resources->default_container() : key.container;
    if (is_there(resources, container)) return true;
  }
  return false;
}

// Calls `look` with the tensor of a variable, under its mutex. Returns false if there is no such
// variable.
template <typename Look>
bool LookAt(tensorflow::ResourceMgr* resources, const std::string& container,
            const std::string& name, const Look& look) {
  tensorflow::Var* found = nullptr;
  if (!resources->Lookup(container, name, &found).ok()) return false;
  const tensorflow::core::RefCountPtr<tensorflow::Var> variable(found);
  const tensorflow::tf_shared_lock lock(*variable->mu());
  return look(*variable->tensor());
}

}  // namespace

ResourceReads FindResourceReads(const tensorflow::MetaGraphDef& meta_graph) {
  ResourceReads reads;
  bool initializes_tables = false;
  const auto look = [&](const NodeDef& node, const std::string&) {
    if (InitializesTable(node.op())) initializes_tables = true;
    if (node.op() == "VarHandleOp") {
      const std::string name = TextOf(node, "shared_name");
      if (name != tensorflow::ResourceHandle::ANONYMOUS_NAME) {
        reads.variables.insert({TextOf(node, "container"), name});
      }
    } else if (node.op() == "HashTable" || node.op() == "HashTableV2") {
      const std::string name = TableName(node);
      if (!name.empty()) reads.tables.insert({TextOf(node, "container"), name});
    }
    return !MayNotRead(node.op());
  };
  GraphWalk(meta_graph).VisitNeeded(SignatureOutputs(meta_graph), look);
  if (initializes_tables) reads.tables.clear();
  return reads;
}

base::StatusOr<tensorflow::Tensor> ValueOf(const ResourceKey& key, tensorflow::Session* session) {
  tensorflow::Tensor value;
  IsOnSomeDevice(
      session, key, [&](tensorflow::ResourceMgr* resources, const std::string& container) {
        return LookAt(resources, container, key.name, [&](const tensorflow::Tensor& tensor) {
          if (tensor.IsInitialized()) value = tensor;
          return tensor.IsInitialized();
        });
      });
  if (!value.IsInitialized()) return base::NotFound("variable '" + key.name + "' has no value");
  return value;
}

std::set<std::string> VariablesWithoutValue(const ResourceReads& reads,
                                            tensorflow::Session* session) {
  std::set<std::string> names;
  for (const ResourceKey& key : reads.variables) {
    const auto holds_value = [&](tensorflow::ResourceMgr* resources, const std::string& container) {
      return LookAt(resources, container, key.name,
                    [](const tensorflow::Tensor& tensor) { return tensor.IsInitialized(); });
    };
    if (!IsOnSomeDevice(session, key, holds_value)) names.insert(key.name);
  }
  return names;
}

std::set<std::string> TablesWithoutValue(const ResourceReads& reads, tensorflow::Session* session) {
  std::set<std::string> names;
  for (const ResourceKey& key : reads.tables) {
    const auto is_filled = [&](tensorflow::ResourceMgr* resources, const std::string& container) {
      tensorflow::lookup::LookupInterface* found = nullptr;
      if (!resources->Lookup(container, key.name, &found).ok()) return false;
      const tensorflow::core::RefCountPtr<tensorflow::lookup::LookupInterface> table(found);
      auto* const initializable = table->GetInitializableLookupTable();
      return initializable == nullptr || initializable->is_initialized();
    };
    if (!IsOnSomeDevice(session, key, is_filled)) names.insert(key.name);
  }
  return names;
}

}  // namespace millpond::tf
