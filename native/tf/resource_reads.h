#pragma once

#include <set>
#include <string>

#include "native/base/status.h"

namespace tensorflow {
class MetaGraphDef;
class Session;
class Tensor;
}  // namespace tensorflow

namespace millpond::tf {

// The key of a variable or a table in a session's resource manager. An empty container is the
// default one.
struct ResourceKey {
  std::string container;
  std::string name;

  bool operator<(const ResourceKey& other) const {
    return container != other.container ? container < other.container : name < other.name;
  }
};

// The resources that each request on some signature reads (GraphWalk::VisitNeeded). In doubt a
// resource is left out.
struct ResourceReads {
  std::set<ResourceKey> variables;  // by the VarHandleOps of the graph
  // Tables that need an initializer. None if a request may be what initializes them.
  std::set<ResourceKey> tables;
};

ResourceReads FindResourceReads(const tensorflow::MetaGraphDef& meta_graph);

// Returns the value of a variable of `session`, and NOT_FOUND if it has none. The value shares the
// variable's memory. While it lives, TensorFlow's gather from the variable would copy the table, so
// it must not outlive the load.
base::StatusOr<tensorflow::Tensor> ValueOf(const ResourceKey& key, tensorflow::Session* session);

// Returns the names of the variables that have no value on any device of `session`.
std::set<std::string> VariablesWithoutValue(const ResourceReads& reads,
                                            tensorflow::Session* session);
// Returns the names of the tables that are not initialized on any device of `session`.
std::set<std::string> TablesWithoutValue(const ResourceReads& reads, tensorflow::Session* session);

}  // namespace millpond::tf
