{{detect}}
{{hosts}}
{{no_colon}}
{{free_port}}
