# modules/hosts: what becomes of each machine type, topology and provisioning model, and what is refused.
# `terraform test` runs it in deploy/terraform, without Google.

mock_provider "google" {}

run "spot_slice_of_sixteen_chips_is_four_joined_hosts" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    disk = { name = "lab1-data-1", type = "hyperdisk-ml", zone = "us-east5-b", seeded = true, device_name = "shared-pd" }
  }
  assert {
    condition     = output.hosts == 4 && google_compute_instance_group_manager.hosts.target_size == 4
    error_message = "as many hosts as it is told"
  }
  assert {
    condition = (
      google_compute_resource_policy.topology[0].name == "lab1-slice-4x4" &&
      google_compute_resource_policy.topology[0].region == "us-east5" &&
      google_compute_resource_policy.topology[0].workload_policy[0].accelerator_topology == "4x4"
    )
    error_message = "the policy is of the topology, in the zone's region"
  }
  assert {
    condition = (
      google_compute_instance_template.host.scheduling[0].preemptible &&
      !google_compute_instance_template.host.scheduling[0].automatic_restart &&
      google_compute_instance_template.host.scheduling[0].instance_termination_action == "DELETE" &&
      google_compute_instance_template.host.scheduling[0].on_host_maintenance == "TERMINATE"
    )
    error_message = "a Spot host is deleted when it is preempted"
  }
  assert {
    condition     = google_compute_instance_group_manager.hosts.target_size_policy[0].mode == "BULK"
    error_message = "hosts of a slice come all at once or not at all"
  }
  assert {
    condition = (
      google_compute_instance_template.host.disk[1].mode == "READ_ONLY" &&
      google_compute_instance_template.host.disk[1].source == "lab1-data-1" &&
      google_compute_instance_template.host.disk[1].device_name == "shared-pd" &&
      !google_compute_instance_template.host.disk[1].auto_delete
    )
    error_message = "the disk is attached to be read, and stays when a host goes"
  }
  assert {
    condition = (
      google_compute_instance_template.host.disk[0].disk_type == "hyperdisk-balanced" &&
      google_compute_instance_template.host.disk[0].labels["maskwright-environment"] == "lab1"
    )
    error_message = "the boot disk is of the type that it is told; boot disks carry the labels too"
  }
  assert {
    condition     = length(google_compute_instance_template.host.network_interface[0].access_config) == 0
    error_message = "no public address"
  }
  assert {
    condition = (
      google_compute_instance_template.host.metadata["maskwright-hosts"] == "4" &&
      google_compute_instance_template.host.metadata["maskwright-topology"] == "4x4" &&
      !contains(keys(google_compute_instance_template.host.metadata), "maskwright-nfs")
    )
    error_message = "metadata tells the number of hosts, and leaves out what does not exist"
  }
  assert {
    condition = (
      google_compute_instance_group_manager.hosts.instance_lifecycle_policy[0].default_action_on_failure == "DO_NOTHING" &&
      !google_compute_instance_group_manager.hosts.wait_for_instances
    )
    error_message = "the watcher repairs, and Terraform does not wait for machines that may not come for hours"
  }
}

run "one_host_needs_no_policy" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    topology           = "2x4"
    hosts              = 1
    machine_type       = "ct6e-standard-8t"
    provisioning_model = "STANDARD"
  }
  assert {
    condition     = output.hosts == 1 && length(google_compute_resource_policy.topology) == 0
    error_message = "one host is joined to no other"
  }
  assert {
    condition = (
      google_compute_instance_template.host.scheduling[0].instance_termination_action == null &&
      google_compute_instance_template.host.scheduling[0].automatic_restart
    )
    error_message = "a host on demand has no end of its own"
  }
}

run "three_dimensions_and_a_reservation" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    topology           = "2x2x4"
    machine_type       = "tpu7x-standard-4t"
    provisioning_model = "RESERVATION_BOUND"
    reservation        = "ours"
  }
  assert {
    condition = (
      output.hosts == 4 &&
      google_compute_instance_group_manager.hosts.target_size_policy[0].mode == "BULK" &&
      google_compute_instance_template.host.reservation_affinity[0].specific_reservation[0].values == tolist(["ours"]) &&
      google_compute_instance_template.host.scheduling[0].instance_termination_action == "DELETE"
    )
    error_message = "hosts of a reservation come all at once, from that reservation"
  }
}

run "flex_start_has_an_end_and_no_reservation" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    provisioning_model = "FLEX_START"
    max_run_hours      = 1.5
  }
  assert {
    condition = (
      google_compute_instance_template.host.scheduling[0].max_run_duration[0].seconds == 5400 &&
      google_compute_instance_template.host.reservation_affinity[0].type == "NO_RESERVATION" &&
      google_compute_instance_group_manager.hosts.target_size_policy[0].mode == "BULK"
    )
    error_message = "Flex-start: 90 minutes, all hosts at once"
  }
}

run "gpu_group" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    name         = "lab1-group"
    machine_type = "g2-standard-12"
    accelerator  = "gpu"
    boot_disk    = "pd-balanced"
    data_disks   = ["hyperdisk-ml", "pd-balanced", "pd-ssd"]
    topology     = null
    hosts        = 2
    image        = "projects/cos-cloud/global/images/family/cos-stable"
    disk         = { name = "lab1-data-1", type = "pd-ssd", zone = "us-east5-b", seeded = true, device_name = "shared-pd" }
  }
  assert {
    condition = (
      output.hosts == 2 && length(google_compute_resource_policy.topology) == 0 &&
      google_compute_instance_template.host.disk[0].disk_type == "pd-balanced" &&
      google_compute_instance_template.host.shielded_instance_config[0].enable_secure_boot &&
      google_compute_instance_template.host.scheduling[0].on_host_maintenance == "TERMINATE"
    )
    error_message = "two hosts with GPUs, not joined; Container-Optimized OS has signed drivers"
  }
}

run "unsigned_drivers_need_secure_boot_off" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    name         = "lab1-group"
    machine_type = "a2-highgpu-1g"
    accelerator  = "gpu"
    topology     = null
    hosts        = 1
  }
  assert {
    condition = (
      !google_compute_instance_template.host.shielded_instance_config[0].enable_secure_boot &&
      google_compute_instance_template.host.shielded_instance_config[0].enable_vtpm
    )
    error_message = "another image with GPUs boots without Secure Boot"
  }
}

run "flex_start_without_hours" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    provisioning_model = "FLEX_START"
  }
  expect_failures = [google_compute_instance_template.host]
}

run "reservation_of_another_model" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    reservation = "ours"
  }
  expect_failures = [google_compute_instance_template.host]
}

run "disk_that_the_machine_cannot_attach" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    disk = { name = "lab1-data-1", type = "pd-balanced", zone = "us-east5-b", seeded = true, device_name = "shared-pd" }
  }
  expect_failures = [google_compute_instance_template.host]
}

run "disk_that_is_being_written" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    disk = { name = "lab1-data-1", type = "hyperdisk-ml", zone = "us-east5-b", seeded = false, device_name = "shared-pd" }
  }
  expect_failures = [google_compute_instance_template.host]
}

run "disk_of_another_zone" {
  module {
    source = "./modules/hosts"
  }
  command = plan
  variables {
    disk = { name = "lab1-data-1", type = "hyperdisk-ml", zone = "us-east5-a", seeded = true, device_name = "shared-pd" }
  }
  expect_failures = [google_compute_instance_template.host]
}

variables {
  name               = "lab1-slice"
  machine_type       = "ct6e-standard-4t"
  topology           = "4x4"
  hosts              = 4
  accelerator        = "tpu"
  boot_disk          = "hyperdisk-balanced"
  data_disks         = ["hyperdisk-ml"]
  zone               = "us-east5-b"
  region             = "us-east5"
  provisioning_model = "SPOT"
  reservation        = null
  max_run_hours      = null
  image              = "projects/p/global/images/family/f"
  labels             = { maskwright-environment = "lab1" }
  subnetwork         = "projects/p/regions/us-east5/subnetworks/lab1-us-east5"
  service_account    = "lab1-train@lab-proj.iam.gserviceaccount.com"
  disk               = null
  metadata           = { maskwright-kind = "slice", maskwright-nfs = null }
}
