# Nothing here is a secret: outputs stand in the state, and whoever reads the state reads them.

output "nfs" {
  description = "Address of the NFS share, and its instance in the form that the CSI driver reads; null without NFS."
  value = one([for nfs in google_filestore_instance.nfs : {
    address = nfs.networks[0].ip_addresses[0]
    handle  = "modeInstance/${nfs.location}/${nfs.name}/${var.nfs.share}"
  }])
}

output "repository" {
  description = "Where images are pushed to."
  value       = "${google_artifact_registry_repository.images.location}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.images.repository_id}"
}
