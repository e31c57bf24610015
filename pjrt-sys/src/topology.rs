//! Topologies: machines described, to compile for without having them.

use crate::*;

functions! {
    /// Makes the description of a machine that need not be present.
    PJRT_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args) {
        topology_name: *const c_char,
        topology_name_size: usize,
        create_options: *const PJRT_NamedValue,
        num_options: usize,
        topology: *mut PJRT_TopologyDescription,
    }

    /// Frees a topology.
    PJRT_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args) {
        topology: *mut PJRT_TopologyDescription,
    }

    /// Gives the platform's name.
    PJRT_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args) {
        topology: *const PJRT_TopologyDescription,
        platform_name: *const c_char,
        platform_name_size: usize,
    }

    /// Gives the version text of the platform.
    PJRT_TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args) {
        topology: *mut PJRT_TopologyDescription,
        platform_version: *const c_char,
        platform_version_size: usize,
    }

    /// Lists the devices of the topology.
    PJRT_TopologyDescription_GetDeviceDescriptions(PJRT_TopologyDescription_GetDeviceDescriptions_Args) {
        topology: *const PJRT_TopologyDescription,
        descriptions: *const *mut PJRT_DeviceDescription,
        num_descriptions: usize,
    }

    /// Turns a topology into bytes that the caller frees through the deleter.
    PJRT_TopologyDescription_Serialize(PJRT_TopologyDescription_Serialize_Args) {
        topology: *mut PJRT_TopologyDescription,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_topology: *mut PJRT_SerializedTopology,
        serialized_topology_deleter: Option<unsafe extern "C" fn(*mut PJRT_SerializedTopology)>,
    }

    /// Gives the topology's key-value pairs.
    PJRT_TopologyDescription_Attributes(PJRT_TopologyDescription_Attributes_Args) {
        topology: *mut PJRT_TopologyDescription,
        attributes: *const PJRT_NamedValue,
        num_attributes: usize,
    }

    /// Compiles for a topology, with no device at hand.
    PJRT_Compile(PJRT_Compile_Args) {
        topology: *const PJRT_TopologyDescription,
        program: *const PJRT_Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        client: *mut PJRT_Client,
        executable: *mut PJRT_Executable,
    }

    /// Makes a topology from such bytes.
    PJRT_TopologyDescription_Deserialize(PJRT_TopologyDescription_Deserialize_Args) {
        serialized_topology: *const c_char,
        serialized_topology_size: usize,
        topology: *mut PJRT_TopologyDescription,
    }
}
